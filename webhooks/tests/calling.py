"""Calls of the API, as a service or a member of staff at a browser would make them."""

from __future__ import annotations

from itertools import count
from typing import Any

from django.test import Client

from subscriptions.models import User
from tests.sending import to_bytes
from webhooks.api.tokens import Scope, create_token
from webhooks.audit import Actor

SOMEBODY = Actor("cli:somebody", is_person=True)
_numbers = count(1)


class Caller:
    """Over https, with CSRF checks on."""

    def __init__(self, headers: dict[str, str] | None = None) -> None:
        self.client = Client(enforce_csrf_checks=True, raise_request_exception=False)
        self.headers = headers or {}

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        sent = body if isinstance(body, bytes) else b"" if body is None else to_bytes(body)
        return self.client.generic(
            method,
            path,
            sent,
            content_type=headers.pop("content_type", "application/json"),
            secure=True,
            # Django's client announces no length for an empty body; servers do.
            CONTENT_LENGTH=str(len(sent)),
            headers={**self.headers, **{n.replace("_", "-"): v for n, v in headers.items()}},
        )

    def get(self, path: str, **headers: str) -> Any:
        return self.call("GET", path, **headers)

    def post(self, path: str, body: Any = None, *, key: str | None = None, **headers: str) -> Any:
        if key is not None:
            headers["Idempotency_Key"] = key
        return self.call("POST", path, body, **headers)


def service(*scopes: Scope, name: str | None = None) -> Caller:
    """With all scopes unless some are named."""
    name = name or f"service{next(_numbers)}"
    _, secret = create_token(name, scopes or Scope, expires_days=1, actor=SOMEBODY)
    return Caller({"Authorization": f"Bearer {secret}"})


def at_a_browser(user: User) -> Caller:
    """Every call carries the CSRF token of the page that makes it."""
    caller = Caller({"Referer": "https://testserver/admin/"})
    caller.client.force_login(user)
    page = caller.client.get("/admin/login/", secure=True)
    token = caller.client.cookies.get("csrftoken")
    if token is None:
        # Who is logged in already is sent on, and gets the cookie there.
        page = caller.client.get("/admin/", secure=True)
        token = caller.client.cookies.get("csrftoken")
    assert token is not None, page
    caller.headers["X-CSRFToken"] = token.value
    return caller


def told(answer: Any) -> tuple[int, str]:
    """The HTTP status and the error's code."""
    error = answer.json()
    assert set(error) == {"error", "request_id"}, error
    assert set(error["error"]) == {"code", "message"}, error
    return answer.status_code, error["error"]["code"]
