"""What is due is tried again, for as long as it makes sense."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db.models import F
from django.db.models.functions import Now
from pytest_django import Settings

from billing.models import Grant, Payment
from subscriptions.models import Plan, User
from tests.looking import counted, database_parameters
from tests.sending import deliver, paid, result
from webhooks import process as processing
from webhooks import recovery, schedule, views
from webhooks.models import AuditEntry, WebhookEvent
from webhooks.recovery import recover

pytestmark = pytest.mark.django_db(transaction=True)
DUE_IN = F("next_attempt_at") - Now()


def _make_due() -> None:
    WebhookEvent.objects.exclude(next_attempt_at=None).update(
        next_attempt_at=Now() - timedelta(seconds=1)
    )


def _die(*_args: object, **_kwargs: object) -> Any:
    raise SystemExit


def _break(*_args: object, **_kwargs: object) -> Any:
    raise RuntimeError("no")


def _left_behind(**fields: Any) -> WebhookEvent:
    """An event whose process died right after storing it."""
    payload = paid(**fields)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(views, "process", _die)
        with pytest.raises(SystemExit):
            deliver(payload)
    return WebhookEvent.objects.get(external_event_id=payload["event_id"])


@pytest.mark.parametrize("status", ["RECEIVED", "VALIDATED", "FAILED_RETRYABLE"])
def test_it_processes_what_is_due(buyer: User, monthly: Plan, status: str) -> None:
    event = _left_behind()
    WebhookEvent.objects.update(status=status)
    _make_due()
    recovered = counted("webhook_recovered_total", provider="tilda")

    assert recover(for_s=10) == {"processed": 1}

    event.refresh_from_db()
    assert (event.status, event.attempts, event.next_attempt_at) == ("PROCESSED", 2, None)
    assert Grant.objects.count() == 1
    assert AuditEntry.objects.get(action="payment_applied").actor == "recovery"
    assert counted("webhook_recovered_total", provider="tilda") == recovered + 1


def test_it_leaves_what_is_not_due_yet(buyer: User, monthly: Plan) -> None:
    event = _left_behind()
    assert not recover(for_s=10)
    event.refresh_from_db()
    assert (event.status, event.attempts) == ("VALIDATED", 1)


@pytest.mark.parametrize("status", ["PROCESSED", "IGNORED", "FAILED_FINAL"])
def test_it_leaves_what_is_finished(buyer: User, monthly: Plan, status: str) -> None:
    _left_behind()
    WebhookEvent.objects.update(status=status)
    _make_due()
    assert not recover(for_s=10)
    assert not Payment.objects.exists()


def test_it_goes_on_batch_after_batch_oldest_first(buyer: User, monthly: Plan) -> None:
    for number in range(5):
        _left_behind(external_payment_id=f"p{number}")
    _make_due()
    assert recover(for_s=10, batch=2) == {"processed": 5}
    assert Grant.objects.count() == 5


def test_it_stops_when_its_time_is_up(buyer: User, monthly: Plan) -> None:
    _left_behind()
    _make_due()
    assert not recover(for_s=0)
    assert WebhookEvent.objects.get().status == "VALIDATED"


def test_what_another_worker_has_locked_is_skipped(buyer: User, monthly: Plan) -> None:
    locked, free = _left_behind(), _left_behind()
    _make_due()
    with psycopg.connect(**database_parameters()) as other:
        sql = "SELECT 1 FROM webhooks_webhookevent WHERE id = %s FOR UPDATE"
        other.execute(sql, [locked.pk])
        assert recover(for_s=10) == {"processed": 1}

    free.refresh_from_db()
    assert free.status == "PROCESSED"
    assert recover(for_s=10) == {"processed": 1}


def test_a_claim_keeps_other_workers_away_for_a_while(buyer: User, monthly: Plan) -> None:
    _left_behind()
    _make_due()

    claimed = recovery._claim(10)

    assert len(claimed) == 1
    assert recovery._claim(10) == []
    due_in = WebhookEvent.objects.annotate(due_in=DUE_IN).get().due_in
    assert timedelta(seconds=50) < due_in <= timedelta(seconds=60)


@pytest.mark.parametrize("attempts", [1, 8])
def test_an_event_that_somebody_else_claimed_is_left_alone(
    buyer: User, monthly: Plan, attempts: int
) -> None:
    """We were slow: our claim ran out, and another worker has it now."""
    _left_behind()
    WebhookEvent.objects.update(attempts=attempts)
    _make_due()
    (ours,) = recovery._claim(10)
    _make_due()
    recovery._claim(10)
    failed = counted("webhook_failed_final_total", provider="tilda")

    assert recovery._try(ours) is None

    event = WebhookEvent.objects.get()
    assert (event.status, event.attempts) == ("VALIDATED", attempts)
    assert not Payment.objects.exists()
    assert counted("webhook_failed_final_total", provider="tilda") == failed


@pytest.mark.parametrize("attempts", [1, 8])
def test_an_event_that_a_redelivery_finished_is_left_alone(
    buyer: User, monthly: Plan, attempts: int
) -> None:
    payload = paid(event_id="e")
    _left_behind(**payload)
    WebhookEvent.objects.update(attempts=attempts)
    _make_due()
    (ours,) = recovery._claim(10)
    assert result(deliver(payload)) == (200, "processed")
    failed = counted("webhook_failed_final_total", provider="tilda")

    assert recovery._try(ours) is None

    assert WebhookEvent.objects.get().status == "PROCESSED"
    assert counted("webhook_failed_final_total", provider="tilda") == failed


def test_an_error_counts_an_attempt_and_backs_off(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    _left_behind()
    monkeypatch.setattr(processing, "settle", _break)
    for attempt, delay_s in ((2, 10), (3, 20), (4, 60), (5, 300), (6, 1200), (7, 3600)):
        _make_due()
        assert recover(for_s=10) == {"failed_retryable": 1}

        event = WebhookEvent.objects.annotate(due_in=DUE_IN).get()
        assert event.attempts == attempt
        assert (event.status, event.error_code) == ("FAILED_RETRYABLE", "PROCESSING_ERROR")
        assert event.error_message == "RuntimeError"
        due_in = event.due_in.total_seconds()
        assert delay_s * 0.8 - 5 < due_in <= delay_s * 1.2


def test_the_last_attempt_ends_in_review(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch, settings: Settings
) -> None:
    assert settings.WEBHOOK_MAX_ATTEMPTS == 8
    event = _left_behind()
    monkeypatch.setattr(processing, "settle", _break)
    for _ in range(7):
        _make_due()
        recover(for_s=10)

    event.refresh_from_db()
    assert (event.status, event.error_code) == ("FAILED_FINAL", "RETRIES_EXHAUSTED")
    assert (event.review, event.next_attempt_at, event.attempts) == ("OPEN", None, 8)
    assert not recover(for_s=10)


def test_an_event_that_kills_its_worker_uses_up_its_own_attempts(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody lives to record the failure, so the attempt is counted before the try."""
    deadly, mate = _left_behind(external_payment_id="deadly"), _left_behind()
    real = processing._walk

    def walk(event: WebhookEvent, *args: Any) -> Any:
        if event.external_payment_id == "deadly":
            raise SystemExit
        return real(event, *args)

    monkeypatch.setattr(processing, "_walk", walk)
    deaths = 0
    for _ in range(12):
        _make_due()
        try:
            recover(for_s=10)
        except SystemExit:
            deaths += 1

    deadly.refresh_from_db()
    mate.refresh_from_db()
    assert deaths == 7
    assert (deadly.status, deadly.error_code) == ("FAILED_FINAL", "RETRIES_EXHAUSTED")
    assert (deadly.review, deadly.next_attempt_at) == ("OPEN", None)
    assert (mate.status, mate.attempts) == ("PROCESSED", 2)
    assert Grant.objects.count() == 1


def test_the_attempt_is_committed_before_the_try(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    _left_behind()
    _make_due()
    seen: list[Any] = []

    def look(*_args: object, **_kwargs: object) -> Any:
        with psycopg.connect(**database_parameters()) as other:
            seen.extend(
                other.execute("SELECT attempts, next_attempt_at > now() FROM webhooks_webhookevent")
            )
        raise SystemExit

    monkeypatch.setattr(recovery, "run", look)
    with pytest.raises(SystemExit):
        recover(for_s=10)
    assert seen == [(2, True)]


def test_a_redelivery_uses_up_no_attempt(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processing, "settle", _break)
    payload = paid()
    for _ in range(12):
        assert result(deliver(payload)) == (200, "failed_retryable")
    assert WebhookEvent.objects.get().attempts == 1


@pytest.mark.parametrize(
    ("attempts", "delay_s"),
    [(0, 5), (1, 5), (2, 10), (3, 20), (4, 60), (5, 300), (6, 1200), (7, 3600), (8, 3600)],
)
@pytest.mark.parametrize("jitter", [0.8, 1.0, 1.2])
def test_the_delay_after_each_attempt(
    monkeypatch: pytest.MonkeyPatch, attempts: int, delay_s: int, jitter: float
) -> None:
    asked: list[tuple[float, float]] = []

    def uniform(low: float, high: float) -> float:
        asked.append((low, high))
        return jitter

    monkeypatch.setattr("webhooks.schedule.random.uniform", uniform)
    delay = schedule.after_failure(attempts).rhs.value  # type: ignore[attr-defined]
    assert delay == timedelta(seconds=delay_s * jitter)
    assert asked == [(0.8, 1.2)]


@pytest.mark.parametrize(
    ("age", "delay_s"),
    [
        (timedelta(0), 60),
        (timedelta(minutes=5), 60),
        (timedelta(minutes=20), 120),
        (timedelta(hours=10), 3600),
        (timedelta(days=29), 3600),
    ],
)
def test_the_longer_it_waited_the_less_often_it_is_looked_at(
    monkeypatch: pytest.MonkeyPatch, age: timedelta, delay_s: int
) -> None:
    monkeypatch.setattr("webhooks.schedule.random.uniform", lambda _low, _high: 1.0)
    assert schedule.after_parking(age).rhs.value == timedelta(seconds=delay_s)  # type: ignore[attr-defined]
