"""Service tokens: a machine's key to the API. Only the hash is kept, so whoever reads the database
cannot call; and a lookup by hash takes the same time however much of a guess was right."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from datetime import timedelta
from enum import StrEnum
from hashlib import sha256

from django.db import IntegrityError, transaction
from django.db.models.functions import Now

from webhooks import audit
from webhooks.audit import Action, Actor
from webhooks.models import ServiceToken

PREFIX = "tgs_"


class Scope(StrEnum):
    ORDERS_READ = "orders:read"
    ORDERS_WRITE = "orders:write"
    PAYMENTS_READ = "payments:read"
    PAYMENTS_WRITE = "payments:write"
    WALLETS_READ = "wallets:read"
    WALLETS_WRITE = "wallets:write"


class NameInUse(Exception):
    """Names are never used again: the audit log would not know which token it means."""


def create_token(
    name: str, scopes: Iterable[Scope], *, expires_days: int, actor: Actor
) -> tuple[ServiceToken, str]:
    """The row, and the token itself, which nobody can ever read again."""
    secret = PREFIX + secrets.token_urlsafe(32)
    token = ServiceToken(name=name, token_hash=_hash(secret), scopes=sorted(set(scopes)))
    token.expires_at = Now() + timedelta(days=expires_days)
    try:
        with transaction.atomic():
            token.save(force_insert=True)
            details = {"token": name, "scopes": token.scopes}
            audit.write(audit.entry(Action.SERVICE_TOKEN_CREATED, actor, details=details))
    except IntegrityError as error:
        raise NameInUse(name) from error
    token.refresh_from_db()
    return token, secret


@transaction.atomic
def revoke_token(token: ServiceToken, actor: Actor, reason: str = "") -> bool:
    """Whether this call revoked it."""
    live = ServiceToken.objects.filter(pk=token.pk, revoked_at__isnull=True)
    if not live.update(revoked_at=Now()):
        return False
    details = {"token": token.name}
    audit.write(audit.entry(Action.SERVICE_TOKEN_REVOKED, actor, reason=reason, details=details))
    return True


def find_token(secret: str) -> ServiceToken | None:
    """The token, if it counts now."""
    return ServiceToken.objects.filter(
        token_hash=_hash(secret), revoked_at__isnull=True, expires_at__gt=Now()
    ).first()


def _hash(secret: str) -> str:
    return sha256(secret.encode()).hexdigest()
