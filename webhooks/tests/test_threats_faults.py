"""What breaks, as far as no server has to be killed for it: threats 45, 47 and 53."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from threading import Timer
from typing import Any

import psycopg
import pytest
from django.db import OperationalError, connection
from django.db.models import F
from django.db.models.functions import Now
from django.utils import timezone
from pytest_django import Settings

from billing.models import Grant, Payment
from subscriptions.models import Plan, User
from tests.looking import NOTHING, database_away, database_parameters, effects
from tests.sending import deliver, paid, result, send, to_bytes
from webhooks import inbox
from webhooks import process as processing
from webhooks.models import WebhookEvent
from webhooks.recovery import recover

pytestmark = pytest.mark.django_db(transaction=True)


@contextmanager
def _locked(statement: str) -> Iterator[None]:
    """Somebody else holds a lock. He lets go after a while, so that a wait without a limit makes
    the test fail instead of hanging it."""
    with psycopg.connect(**database_parameters()) as other:
        other.execute(statement)
        timer = Timer(1.5, other.rollback)
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
            other.rollback()


@pytest.fixture
def short_waits(settings: Settings) -> None:
    settings.LOCK_TIMEOUT_MS = 100
    settings.STATEMENT_TIMEOUT_MS = 400


def test_45_without_a_database_callers_are_asked_to_come_back(buyer: User, monthly: Plan) -> None:
    payload = paid()
    with database_away():
        answer = deliver(payload)

    assert result(answer) == (503, "UNAVAILABLE")
    assert int(answer["Retry-After"]) > 0
    assert effects() == NOTHING
    assert result(deliver(payload)) == (200, "processed")


def test_45_without_a_database_health_says_so() -> None:
    with database_away():
        answer = send(b"", url="/webhooks/health", method="GET")
    assert result(answer) == (503, "UNAVAILABLE")
    assert "Retry-After" in answer


def test_45_without_a_database_a_forged_request_is_still_refused() -> None:
    with database_away():
        assert result(send(to_bytes(paid()))) == (401, "INVALID_SIGNATURE")


def test_45_a_connection_that_died_in_the_meantime_is_no_reason_to_refuse(
    buyer: User, monthly: Plan
) -> None:
    connection.ensure_connection()
    with psycopg.connect(**database_parameters()) as other:
        pid = connection.connection.info.backend_pid
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])

    assert result(deliver(paid())) == (200, "processed")


def test_45_connecting_takes_two_seconds_at_most(settings: Settings) -> None:
    """A host that swallows packets: the limit itself is the kernel's and libpq's business."""
    assert settings.DATABASES["default"]["OPTIONS"]["connect_timeout"] <= 2


@pytest.mark.parametrize(
    "lock",
    [
        "LOCK TABLE webhooks_webhookevent IN ACCESS EXCLUSIVE MODE",
        "LOCK TABLE webhooks_webhookevent IN SHARE MODE",
    ],
)
def test_47_a_lock_before_the_event_is_stored_is_a_503(
    short_waits: None, buyer: User, monthly: Plan, lock: str
) -> None:
    payload = paid()
    with _locked(lock):
        answer = deliver(payload)

    assert result(answer) == (503, "UNAVAILABLE")
    assert int(answer["Retry-After"]) > 0
    assert effects() == NOTHING
    assert result(deliver(payload)) == (200, "processed")


@pytest.mark.parametrize("sqlstate", ["40P01", "55P03", "57014", "53300", "53100", "25006"])
def test_47_whatever_breaks_before_the_event_is_stored_is_a_503(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch, sqlstate: str
) -> None:
    """Deadlock, lock and statement timeout, too many connections, disk full, read-only."""
    payload = paid()
    with monkeypatch.context() as patch:
        patch.setattr(inbox, "_insert_sql", lambda _: _raising(sqlstate))
        answer = deliver(payload)

    assert result(answer) == (503, "UNAVAILABLE")
    assert effects() == NOTHING
    assert result(deliver(payload)) == (200, "processed")


@pytest.mark.parametrize(
    "lock",
    [
        "LOCK TABLE billing_payment IN ACCESS EXCLUSIVE MODE",
        "LOCK TABLE subscriptions_subscription IN ACCESS EXCLUSIVE MODE",
        "LOCK TABLE billing_outboxmessage IN ACCESS EXCLUSIVE MODE",
    ],
)
def test_47_a_lock_after_the_event_is_stored_is_tried_again(
    short_waits: None, buyer: User, monthly: Plan, lock: str
) -> None:
    with _locked(lock):
        assert result(deliver(paid())) == (200, "failed_retryable")

    event = WebhookEvent.objects.get()
    assert (event.status, event.error_code) == ("FAILED_RETRYABLE", "PROCESSING_ERROR")
    assert event.error_message == "OperationalError 55P03"
    assert event.attempts == 1
    assert effects() == {**NOTHING, "events": 1}
    WebhookEvent.objects.update(next_attempt_at=Now())
    assert recover(for_s=10) == {"processed": 1}
    assert Grant.objects.count() == 1


@pytest.mark.parametrize("sqlstate", ["40P01", "57014", "53100"])
def test_47_whatever_breaks_after_the_event_is_stored_is_tried_again(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch, sqlstate: str
) -> None:
    def breaks(*_args: Any, **_kwargs: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute(_raising(sqlstate))

    with monkeypatch.context() as patch:
        patch.setattr(processing, "finish", breaks)
        assert result(deliver(paid())) == (200, "failed_retryable")

    event = WebhookEvent.objects.get()
    assert (event.status, event.attempts) == ("FAILED_RETRYABLE", 1)
    assert str(event.error_message).endswith(sqlstate)
    assert not Payment.objects.exists()


def test_47_when_not_even_the_failure_can_be_recorded_the_event_is_due_again(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def breaks(*_args: Any, **_kwargs: Any) -> None:
        raise OperationalError

    with monkeypatch.context() as patch:
        patch.setattr(processing, "finish", breaks)
        patch.setattr("webhooks.finishing.schedule.after_failure", breaks)
        assert result(deliver(paid())) == (200, "failed_retryable")

    event = WebhookEvent.objects.get()
    assert event.status == "VALIDATED"
    assert event.next_attempt_at is not None


def test_53_due_times_come_from_the_databases_clock(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Our own clock is an hour off, in either direction, for everything we can ask it."""
    real_time, real_now = time.time, timezone.now
    for offset_s in (3600, -3600):
        monkeypatch.setattr(time, "time", lambda offset_s=offset_s: real_time() + offset_s)
        offset = timedelta(seconds=offset_s)
        monkeypatch.setattr(timezone, "now", lambda offset=offset: real_now() + offset)

        deliver(paid(email=f"nobody{offset_s}@example.com"))
        assert not recover(for_s=5), "nothing is due yet"

    waits = WebhookEvent.objects.annotate(due_in=F("next_attempt_at") - Now())
    for event in waits:
        assert timedelta(0) < event.due_in < timedelta(seconds=90)
    WebhookEvent.objects.update(next_attempt_at=Now())
    assert recover(for_s=5) == {"unlinked": 2}


def _raising(sqlstate: str) -> str:
    return f"DO $$ BEGIN RAISE EXCEPTION 'broken' USING ERRCODE = '{sqlstate}'; END $$"
