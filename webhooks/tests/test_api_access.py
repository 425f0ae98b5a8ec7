"""Who may call what: every role, every URL, every method."""

from __future__ import annotations

import hashlib
import re
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.core.management import CommandError, call_command
from django.db.models import F
from django.test import Client
from django.urls import get_resolver

from subscriptions.models import User
from tests.factories import StaffFactory, UserFactory
from tests.looking import contents
from webhooks.api import urls
from webhooks.api.tokens import Scope, create_token, find_token, revoke_token
from webhooks.models import AuditEntry, ServiceToken
from webhooks.tests.calling import SOMEBODY, Caller, at_a_browser, service, told
from webhooks.tests.test_admin import Staff

pytestmark = pytest.mark.django_db

ONE, TWO = "0199c0de-0000-4000-8000-00000000000a", "0199c0de-0000-4000-8000-00000000000b"
# Every URL, the word of its scopes, and what it can be asked.
URLS = [
    ("/api/orders", "orders", {"GET", "POST"}),
    ("/api/orders/order-1", "orders", {"GET"}),
    ("/api/payments", "payments", {"GET", "POST"}),
    (f"/api/payments/{ONE}", "payments", {"GET"}),
    (f"/api/payments/{ONE}/provider-txn", "payments", {"POST"}),
    ("/api/wallets", "wallets", {"POST"}),
    (f"/api/wallets/{ONE}", "wallets", {"GET"}),
    (f"/api/wallets/{ONE}/reservations", "wallets", {"POST"}),
    (f"/api/wallets/{ONE}/reservations/{TWO}/commit", "wallets", {"POST"}),
    (f"/api/wallets/{ONE}/reservations/{TWO}/release", "wallets", {"POST"}),
]
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")


def _staff_who_may_see(*models: str) -> User:
    user: User = UserFactory.create(is_staff=True)
    codenames = [f"view_{model}" for model in models]
    user.user_permissions.set(Permission.objects.filter(codename__in=codenames))
    return user


def _roles() -> dict[str, tuple[Caller, set[str]]]:
    """Each caller, and what they may do: scopes, as far as they reach."""
    reading = {"orders:read", "payments:read", "wallets:read"}
    everything = {str(scope) for scope in Scope}
    roles: dict[str, tuple[Caller, set[str]]] = {
        "nobody": (Caller(), set()),
        "customer": (at_a_browser(UserFactory.create()), set()),
        "staff without rights": (at_a_browser(_staff_who_may_see()), set()),
        "staff of payments": (at_a_browser(_staff_who_may_see("paymentview")), {"payments:read"}),
        "staff": (at_a_browser(_staff_who_may_see("order", "paymentview", "wallet")), reading),
        "superuser": (at_a_browser(StaffFactory.create()), everything),
    }
    for scope in Scope:
        roles[scope] = (service(scope), {str(scope)})
    return roles


def test_every_role_url_and_method() -> None:
    for role, (caller, may) in _roles().items():
        for url, word, methods in URLS:
            for method in METHODS:
                scope = f"{word}:{'read' if method in ('GET', 'HEAD', 'OPTIONS') else 'write'}"
                answer = caller.call(method, url)
                what = (role, method, url, answer.status_code)
                if role == "nobody":
                    assert answer.status_code == 401, what
                elif scope not in may:
                    assert answer.status_code == 403, what
                elif method not in methods and (method, "GET" in methods) != ("HEAD", True):
                    assert answer.status_code == 405, what
                else:
                    # Empty and unknown: whoever gets as far is told what is wrong with the call.
                    assert answer.status_code in (200, 400, 404), what


def test_the_table_knows_every_url() -> None:
    patterns = [pattern.pattern.regex for pattern in urls.urlpatterns[:-1]]
    assert len(patterns) == len(URLS)
    for url, _, _ in URLS:
        assert any(pattern.fullmatch(url.removeprefix("/api/")) for pattern in patterns)


def test_what_is_refused_changes_nothing(buyer: User) -> None:
    reader = service(Scope.WALLETS_READ, Scope.ORDERS_WRITE)
    before = contents()

    answer = reader.post("/api/wallets", {"user": str(buyer.pk), "currency": "RUB"}, key="k")

    assert told(answer) == (403, "PERMISSION_DENIED")
    assert contents() == before


def test_the_url_works_with_and_without_its_last_slash() -> None:
    caller = service()
    for url, _, methods in URLS:
        for method in methods:
            plain, slashed = caller.call(method, url), caller.call(method, f"{url}/")
            assert plain.status_code == slashed.status_code
            assert plain.json().get("error") == slashed.json().get("error")


@pytest.mark.parametrize(
    "path",
    [
        "/api/",
        "/api/nothing",
        "/api/payments/not-a-uuid",
        f"/api/payments/{ONE.upper()}x",
        f"/api/payments/{ONE.replace('-', '')}",
        f"/api/wallets/{{{ONE}}}",
        f"/api/wallets/{ONE}/reservations/1/commit",
    ],
)
def test_what_is_not_there_is_told_in_json(path: str) -> None:
    for method in ("GET", "POST"):
        assert told(service().call(method, path)) == (404, "NOT_FOUND")


def _bearer(secret: str) -> Caller:
    return Caller({"Authorization": f"Bearer {secret}"})


def test_a_token_is_known_by_its_hash_alone() -> None:
    token, secret = create_token("shop", [Scope.ORDERS_READ], expires_days=1, actor=SOMEBODY)

    assert secret.startswith("tgs_")
    assert len(secret) > 40
    assert token.token_hash == hashlib.sha256(secret.encode()).hexdigest()
    assert secret not in str(contents())
    assert _bearer(secret).get("/api/orders").status_code == 200


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", "Bearer tgs_", "Bearer tgs_wrong", "Bearer wrong", "Bearer tgs_\xe9"],
)
def test_what_is_no_token_is_401(header: str) -> None:
    answer = Caller({"Authorization": header}).get("/api/orders")

    assert answer.status_code == 401
    assert answer["WWW-Authenticate"] == "Bearer"
    assert told(answer)[1] in ("NOT_AUTHENTICATED", "INVALID_TOKEN")


def test_an_expired_and_a_revoked_token_look_like_an_unknown_one() -> None:
    expired, expired_secret = create_token("a", Scope, expires_days=1, actor=SOMEBODY)
    revoked, revoked_secret = create_token("b", Scope, expires_days=1, actor=SOMEBODY)
    assert _bearer(expired_secret).get("/api/orders").status_code == 200
    ServiceToken.objects.filter(pk=expired.pk).update(
        expires_at=F("created_at") - timedelta(seconds=1)
    )
    assert revoke_token(revoked, SOMEBODY, "leaked")
    assert not revoke_token(revoked, SOMEBODY, "leaked")

    answers = [_bearer(s).get("/api/orders") for s in (expired_secret, revoked_secret, "tgs_x")]

    assert {told(answer) for answer in answers} == {(401, "INVALID_TOKEN")}
    assert AuditEntry.objects.get(action="service_token_revoked").reason == "leaked"


def test_a_wrong_token_beside_a_session_is_refused() -> None:
    caller = at_a_browser(StaffFactory.create())
    caller.headers["Authorization"] = "Bearer tgs_wrong"
    assert told(caller.get("/api/orders")) == (401, "INVALID_TOKEN")


def test_a_session_needs_the_csrf_token_to_write(buyer: User) -> None:
    caller = at_a_browser(StaffFactory.create())
    wanted = {"user": str(buyer.pk), "currency": "RUB"}
    token = caller.headers.pop("X-CSRFToken")

    assert told(caller.post("/api/wallets", wanted)) == (403, "PERMISSION_DENIED")

    caller.headers["X-CSRFToken"] = token
    assert caller.post("/api/wallets", wanted).status_code == 201


def test_every_view_of_the_api_checks_sessions_for_csrf() -> None:
    """The framework takes them all out of the middleware's check; who authenticates by session
    is checked by the authentication itself, and nothing else authenticates by cookie."""
    callbacks: list[Any] = [pattern.callback for pattern in urls.urlpatterns]
    views = [callback.cls for callback in callbacks]
    kinds = {kind.__name__ for view in views for kind in view.authentication_classes}
    assert kinds == {"ServiceTokenAuthentication", "StaffSession"}


def test_plain_http_is_refused_and_never_redirected() -> None:
    caller = service()
    for method in ("GET", "POST"):
        answer = Client().generic(method, "/api/orders", b"{}", headers=caller.headers)
        assert told(answer) == (403, "HTTPS_REQUIRED")


def test_the_webhooks_are_still_where_they_were() -> None:
    assert get_resolver().resolve("/webhooks/payments").kwargs == {"slug": "payments"}


@pytest.mark.parametrize(
    ("body", "headers", "status"),
    [
        (b"{", {}, 400),
        (b"[]", {}, 400),
        (b'{"a": NaN}', {}, 400),
        (b'{"a": 1, "a": 2}', {}, 400),
        (b"{}", {"content_type": "text/plain"}, 415),
        (b"a=1", {"content_type": "application/x-www-form-urlencoded"}, 415),
        (b"{}", {"Content_Encoding": "gzip"}, 415),
        (b'{"a": "' + b"x" * 1024 * 1024 + b'"}', {}, 413),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(
    body: bytes, headers: dict[str, str], status: int
) -> None:
    answer = service().post("/api/orders", body, **headers)
    assert told(answer)[0] == status


def test_answers_are_not_kept_by_anybody_between() -> None:
    assert service().get("/api/orders")["Cache-Control"] == "no-store"


def _command(*args: str) -> tuple[str, str]:
    out, err = StringIO(), StringIO()
    call_command("create_service_token", *args, stdout=out, stderr=err)
    return out.getvalue().strip(), err.getvalue()


def test_the_command_makes_a_token_and_prints_it_once() -> None:
    secret, said = _command("shop", "--scope", "orders:write", "--scope", "orders:read")

    token = find_token(secret)
    assert token is not None
    assert (token.name, token.scopes) == ("shop", ["orders:read", "orders:write"])
    assert timedelta(days=364) < token.expires_at - token.created_at < timedelta(days=366)
    assert secret not in said
    entry = AuditEntry.objects.get(action="service_token_created")
    assert entry.actor.startswith("cli:")
    assert entry.details == {"token": "shop", "scopes": ["orders:read", "orders:write"]}

    assert _command("shop", "--revoke", "--reason", "left") == ("shop is revoked.", "")
    assert find_token(secret) is None


@pytest.mark.parametrize(
    "args",
    [
        ("shop",),
        ("shop", "--scope", "everything"),
        ("shop", "--scope", "orders:read", "--expires-days", "0"),
        ("", "--scope", "orders:read"),
        ("a\nb", "--scope", "orders:read"),
        ("x" * 65, "--scope", "orders:read"),
        ("known", "--scope", "orders:read"),
        ("nobody", "--revoke"),
        ("gone", "--revoke"),
    ],
)
def test_the_command_refuses_clearly(args: tuple[str, ...]) -> None:
    create_token("known", [Scope.ORDERS_READ], expires_days=1, actor=SOMEBODY)
    gone, _ = create_token("gone", [Scope.ORDERS_READ], expires_days=1, actor=SOMEBODY)
    revoke_token(gone, SOMEBODY)
    before = contents()

    with pytest.raises(CommandError):
        _command(*args)

    assert contents() == before


def test_staff_with_the_right_revoke_a_token_and_say_why() -> None:
    token, secret = create_token("shop", Scope, expires_days=1, actor=SOMEBODY)
    staff = Staff(StaffFactory.create())
    page = staff.get("webhooks_servicetoken_change", token.pk).content.decode()
    assert not re.search(f"{token.token_hash}|{secret}", page)

    staff.act("webhooks_servicetoken", "revoke", token, reason="leaked")
    again: Any = staff.act("webhooks_servicetoken", "revoke", token, reason="leaked")

    assert "revoked before" in again.content.decode()
    assert find_token(secret) is None
    entry = AuditEntry.objects.get(action="service_token_revoked")
    assert (entry.actor, entry.reason) == (f"staff:{staff.user.pk}", "leaked")


def test_staff_without_the_right_cannot_revoke() -> None:
    token, secret = create_token("shop", Scope, expires_days=1, actor=SOMEBODY)
    staff = Staff(_staff_who_may_see("servicetoken"))

    staff.act("webhooks_servicetoken", "revoke", token, reason="spite")

    assert find_token(secret) is not None
