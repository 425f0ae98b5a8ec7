"""Who calls the API, and what they may do there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.conf import settings
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import SAFE_METHODS, BasePermission
from rest_framework.request import Request

from subscriptions.models import User
from webhooks.api.tokens import PREFIX, Scope, find_token
from webhooks.audit import Actor
from webhooks.errors import Refused


@dataclass(frozen=True)
class Service:
    """The `request.user` of a call with a service token."""

    name: str
    scopes: frozenset[str]
    is_authenticated = True
    is_active = True
    is_staff = False


@dataclass(frozen=True, kw_only=True)
class Rights:
    """What a view asks for: scopes of services, a permission of staff. Only superusers write."""

    read: Scope
    write: Scope
    view: str


class InvalidToken(AuthenticationFailed):
    """Unknown, expired or revoked: which of them is nobody's business."""

    default_code = "invalid_token"
    default_detail = "the service token is not valid"


class ServiceTokenAuthentication(BaseAuthentication):
    def authenticate(self, request: Request) -> tuple[Any, str] | None:
        scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return None
        if not (secret.startswith(PREFIX) and secret.isascii()):
            raise InvalidToken
        token = find_token(secret)
        if token is None:
            raise InvalidToken
        return Service(token.name, frozenset(token.scopes)), token.name

    def authenticate_header(self, request: Request) -> str:
        return "Bearer"


class StaffSession(SessionAuthentication):
    """A browser that is logged in to the back office; CSRF is checked."""

    def enforce_csrf(self, request: Request) -> None:
        # Of the framework's own request, the check would want the body parsed.
        super().enforce_csrf(request._request)  # type: ignore[arg-type]


class MayCall(BasePermission):
    def has_permission(self, request: Request, view: Any) -> bool:
        rights: Rights = view.rights
        writes = request.method not in SAFE_METHODS
        caller: Any = request.user
        if isinstance(caller, Service):
            return (rights.write if writes else rights.read) in caller.scopes
        if not (isinstance(caller, User) and caller.is_staff):
            return False
        return caller.is_superuser if writes else caller.has_perm(rights.view)


def actor_of(request: Request) -> Actor:
    caller: Any = request.user
    if isinstance(caller, Service):
        return Actor(f"service:{caller.name}")
    return Actor.staff(caller)


def refuse_plain_http(request: Request) -> None:
    """A redirect would turn a POST into a GET, and the token has crossed the wire in the open."""
    if settings.SECURE_SSL_REDIRECT and not request.is_secure():
        raise Refused(403, "HTTPS_REQUIRED", "call this over https")
