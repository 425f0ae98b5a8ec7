from datetime import timedelta

import pytest
from django.db.models.functions import Now
from django.test import Client
from pytest_django import Settings

from subscriptions.models import Plan, User
from tests.looking import database_away
from tests.sending import deliver, paid, result, send
from webhooks.models import WebhookEvent

URL = "/webhooks/health"


@pytest.mark.django_db
@pytest.mark.parametrize("slash", ["", "/"])
def test_it_says_that_all_is_well(slash: str) -> None:
    answer = Client().get(URL + slash)

    assert answer.status_code == 200
    told = answer.json()
    assert told["response_time_ms"] > 0
    del told["response_time_ms"]
    assert told == {
        "status": "ok",
        "providers": ["tilda"],
        "errors": {"failed_retryable": 0, "in_review": 0},
        "oldest_due_s": 0,
        "stuck": 0,
    }


@pytest.mark.django_db
def test_it_counts_what_waits_and_for_how_long(buyer: User, monthly: Plan) -> None:
    deliver(paid())
    deliver(paid(email="nobody@example.com"))
    deliver(paid(email=None))
    deliver(paid(amount="1"))
    WebhookEvent.objects.filter(error_code="USER_MISSING").update(
        next_attempt_at=Now() - timedelta(hours=2)
    )

    told = Client().get(URL).json()

    assert told["errors"] == {"failed_retryable": 2, "in_review": 1}
    assert 7100 <= told["oldest_due_s"] < 7260
    assert told["stuck"] == 1


@pytest.mark.django_db
def test_what_is_due_in_the_future_is_not_overdue(buyer: User, monthly: Plan) -> None:
    deliver(paid(email="nobody@example.com"))
    told = Client().get(URL).json()
    assert (told["oldest_due_s"], told["stuck"]) == (0, 0)


@pytest.mark.django_db
def test_a_provider_that_is_off_is_not_listed(settings: Settings) -> None:
    settings.WEBHOOK_SECRETS = {}
    assert Client().get(URL).json()["providers"] == []


@pytest.mark.django_db
def test_it_shows_nothing_about_anybody(buyer: User, monthly: Plan) -> None:
    deliver(paid(email="nobody@example.com", external_payment_id="secret-id"))
    shown = Client().get(URL).content
    assert b"example.com" not in shown
    assert b"secret-id" not in shown
    assert b"test-secret" not in shown


@pytest.mark.django_db
def test_it_can_be_asked_by_head_and_only_read() -> None:
    assert Client().head(URL).status_code == 200
    assert result(send(b"", url=URL)) == (405, "METHOD_NOT_ALLOWED")


@pytest.mark.django_db
def test_it_is_answered_over_plain_http_and_not_redirected(settings: Settings) -> None:
    assert settings.SECURE_SSL_REDIRECT
    assert Client().get(URL, secure=False).status_code == 200


@pytest.mark.django_db(transaction=True)
def test_without_a_database_it_is_unavailable() -> None:
    with database_away():
        answer = Client().get(URL)
    assert result(answer) == (503, "UNAVAILABLE")
    assert int(answer["Retry-After"]) > 0
