"""Several recoverers over one backlog, each a process of its own."""

from __future__ import annotations

import multiprocessing

import pytest
from django.db.models import F
from django.db.models.functions import Now

from subscriptions.models import Plan, User
from tests.faults import children, jobs
from tests.faults.threads import Meeting, at_once
from tests.faults.truths import assert_applied_once, assert_periods_adjacent, store_and_lose
from tests.sending import paid
from webhooks import recovery
from webhooks.models import AuditEntry, WebhookEvent

pytestmark = pytest.mark.django_db(transaction=True)

RECOVERERS = 4


def test_it_applies_each_event_once_when_several_workers_recover_one_backlog(
    buyer: User, monthly: Plan
) -> None:
    payloads = [paid() for _ in range(60)]
    for payload in payloads:
        store_and_lose(payload)
    start = multiprocessing.get_context("forkserver").Barrier(RECOVERERS)

    workers = [children.start(jobs.recover_together, start, 7) for _ in range(RECOVERERS)]
    results = [worker.result() for worker in workers]

    assert sum((result["processed"] for result in results), 0) == len(payloads)
    # Else they did not race.
    assert sum(1 for result in results if result) > 1
    for payload in payloads:
        # One attempt was the web process's, one is a single worker's.
        assert assert_applied_once(payload).attempts == 2
    assert_periods_adjacent(buyer, number=len(payloads))
    assert AuditEntry.objects.filter(action="payment_applied").count() == len(payloads)


def test_a_task_that_celery_delivers_several_times_applies_each_event_once(
    buyer: User, monthly: Plan
) -> None:
    payloads = [paid() for _ in range(10)]
    for payload in payloads:
        store_and_lose(payload)
    start = multiprocessing.get_context("forkserver").Barrier(3)

    for worker in [children.start(jobs.run_the_task, start) for _ in range(3)]:
        worker.result()

    for payload in payloads:
        assert assert_applied_once(payload).attempts == 2
    assert_periods_adjacent(buyer, number=len(payloads))


def _claim_without_lock(batch: int) -> list[WebhookEvent]:
    due = WebhookEvent.objects.filter(status__in=["VALIDATED"], next_attempt_at__lte=Now())
    return list(due[:batch])


def _begin_without_compare(event: WebhookEvent) -> bool:
    event.attempts += 1
    return bool(WebhookEvent.objects.filter(pk=event.pk).update(attempts=F("attempts") + 1))


def _recover_twice_at_once(monkeypatch: pytest.MonkeyPatch) -> WebhookEvent:
    store_and_lose(paid())
    monkeypatch.setattr(recovery, "_claim", Meeting(2).after(recovery._claim))
    at_once(*[lambda: recovery.recover(for_s=10)] * 2)
    return WebhookEvent.objects.get()


def test_two_workers_try_the_same_event_when_they_do_not_claim_it(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: both see it due, and both use up one of its attempts."""
    monkeypatch.setattr(recovery, "_claim", _claim_without_lock)
    monkeypatch.setattr(recovery, "_begin_attempt", _begin_without_compare)

    event = _recover_twice_at_once(monkeypatch)

    assert event.attempts == 3
    # That it was applied once all the same is the event's own lock.
    assert_periods_adjacent(buyer, number=1)


@pytest.mark.parametrize("guard", ["claim", "compare"])
def test_one_worker_tries_an_event_when_either_guard_is_there(
    guard: str, buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    if guard == "claim":
        monkeypatch.setattr(recovery, "_begin_attempt", _begin_without_compare)
    else:
        monkeypatch.setattr(recovery, "_claim", _claim_without_lock)

    assert _recover_twice_at_once(monkeypatch).attempts == 2
    assert_periods_adjacent(buyer, number=1)
