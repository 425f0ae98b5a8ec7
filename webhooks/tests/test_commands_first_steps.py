"""manage.py send_webhook and create_demo_data: what a newcomer meets first."""

from __future__ import annotations

import json
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db.models.functions import Now
from pytest_django import Settings

from billing.models import Grant
from subscriptions.models import Plan, PlanPrice, User
from tests.looking import contents


def _run(*arguments: object) -> str:
    out = StringIO()
    call_command(*map(str, arguments), stdout=out)
    return out.getvalue()


@pytest.fixture
def url(live_server: Any) -> str:
    return f"{live_server.url}/webhooks/payments"


def _send(url: str, *arguments: object) -> tuple[dict[str, Any], list[tuple[int, str]]]:
    """What was sent, and what came back each time."""
    sent, *answers = _run("send_webhook", "--url", url, *arguments).splitlines()
    parsed = [(int(answer[:3]), json.loads(answer[4:])) for answer in answers]
    words = [
        (status, told["error"]["code"] if "error" in told else told["status"])
        for status, told in parsed
    ]
    return json.loads(sent), words


@pytest.fixture
def demo(transactional_db: None, settings: Settings) -> None:
    settings.DEBUG = True
    _run("create_demo_data")
    settings.DEBUG = False


def test_the_first_webhook_works_as_it_stands(demo: None, url: str) -> None:
    sent, answers = _send(url)

    assert answers == [(200, "processed")]
    assert sent["email"] == "demo@example.com"
    assert Grant.objects.get().payment.external_payment_id == sent["external_payment_id"]
    assert _send(url)[1] == [(200, "processed")], "another run is another payment"


def test_it_sends_what_it_is_told(demo: None, url: str) -> None:
    options = ["--email", "second@example.com", "--amount", "100", "--currency", "USD"]
    options += ["--plan", "yearly", "--event-id", "e-1", "--payment-id", "p-1"]

    sent, answers = _send(url, *options)

    assert answers == [(200, "processed")]
    assert (sent["event_id"], sent["external_payment_id"]) == ("e-1", "p-1")
    assert Grant.objects.filter(plan__code="yearly", subscription__user__email="second@example.com")
    assert _send(url, *options)[1] == [(200, "duplicate")]


@pytest.mark.parametrize(
    ("options", "answers"),
    [
        (["--repeat", "3"], [(200, "processed"), (200, "duplicate"), (200, "duplicate")]),
        (["--tamper"], [(401, "INVALID_SIGNATURE")]),
        (["--unsigned"], [(401, "INVALID_SIGNATURE")]),
        (["--timestamp"], [(200, "processed")]),
        (["--timestamp", "--tamper"], [(401, "INVALID_SIGNATURE")]),
        (["--status", "failed"], [(200, "ignored")]),
        (["--email", ""], [(200, "unlinked")]),
        (["--amount", ""], [(200, "failed_final")]),
        (["--amount", "5"], [(200, "failed_final")]),
        (["--plan", "no-such-plan"], [(200, "failed_final")]),
    ],
)
def test_it_shows_what_each_kind_of_webhook_is_answered(
    demo: None, url: str, options: list[str], answers: list[tuple[int, str]]
) -> None:
    assert _send(url, *options)[1] == answers


def test_it_says_when_nobody_answers(db: None) -> None:
    with pytest.raises(CommandError, match="nobody answers"):
        _run("send_webhook", "--url", "http://127.0.0.1:9/webhooks/payments")


def test_it_says_when_there_is_nothing_to_sign_with(db: None, settings: Settings) -> None:
    settings.WEBHOOK_SECRETS = {}
    with pytest.raises(CommandError, match="WEBHOOK_SECRETS_TILDA"):
        _run("send_webhook", "--url", "http://127.0.0.1:9/")


# --- create_demo_data ---


@pytest.mark.django_db
def test_demo_data_is_only_for_debug(settings: Settings) -> None:
    settings.DEBUG = False
    with pytest.raises(CommandError, match="DEBUG=1"):
        _run("create_demo_data")
    assert not User.objects.exists()


@pytest.mark.django_db
def test_demo_data_is_made_once(settings: Settings) -> None:
    settings.DEBUG = True
    first = _run("create_demo_data")
    before = contents()

    second = _run("create_demo_data")

    assert contents() == before
    password = first.rpartition("password: ")[2].strip()
    admin = User.objects.get(is_superuser=True)
    assert len(password) >= 12
    assert admin.check_password(password)
    assert password not in second
    assert Plan.objects.get(is_default=True).code == "monthly"
    assert not User.objects.get(email="demo@example.com").has_usable_password()


@pytest.mark.django_db
def test_demo_data_leaves_what_a_developer_changed(settings: Settings) -> None:
    settings.DEBUG = True
    _run("create_demo_data")
    PlanPrice.objects.filter(currency="RUB").update(amount=1, valid_from=Now() - timedelta(days=1))
    before = contents()
    _run("create_demo_data")
    assert contents() == before
