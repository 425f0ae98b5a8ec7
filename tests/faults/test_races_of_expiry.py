"""A subscription's time runs out at the moment it is paid for again."""

from __future__ import annotations

from datetime import timedelta
from threading import Event
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

from subscriptions import extending
from subscriptions.expiry import Expired, expire
from subscriptions.models import Plan, Subscription, User
from tests.factories import SubscriptionFactory
from tests.faults.threads import Meeting, at_once
from tests.sending import deliver, paid
from webhooks import tasks
from webhooks.models import AuditEntry

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def over(buyer: User) -> Subscription:
    ended = timezone.now() - timedelta(hours=1)
    return SubscriptionFactory.create(user=buyer, status="ACTIVE", current_period_end=ended)


def _assert_paid_for(subscription: Subscription) -> None:
    subscription.refresh_from_db()
    assert subscription.status == "ACTIVE"
    assert subscription.current_period_end > timezone.now()


def test_the_payment_wins_when_expiry_runs_while_it_extends(
    over: Subscription, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    expired: list[int] = []

    def locked_then_expiry_runs(user_id: UUID) -> Any:
        row = find(user_id)
        expired.extend(at_once(tasks.expire_batch))
        return row

    find = extending._find_or_create_locked
    monkeypatch.setattr(extending, "_find_or_create_locked", locked_then_expiry_runs)

    assert deliver(paid()).json()["status"] == "processed"

    assert expired == [0]
    _assert_paid_for(over)


def test_the_payment_wins_when_it_comes_while_expiry_runs(
    over: Subscription, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    meeting, has_expired = Meeting(2), Event()

    def expire_then_wait(*, limit: int) -> Any:
        ids = expire(limit=limit)
        has_expired.set()
        meeting.wait()  # for the payment, which waits for our lock
        return ids

    def pay() -> Any:
        has_expired.wait(10)
        return deliver(paid())

    monkeypatch.setattr(tasks, "expire", expire_then_wait)

    expired, answer = at_once(tasks.expire_batch, pay)

    assert (expired, answer.json()["status"]) == (1, "processed")
    assert AuditEntry.objects.filter(action="subscription_expired").count() == 1
    _assert_paid_for(over)


@pytest.mark.breaks_invariants("subscription_is_active_while_paid")
def test_a_paid_subscription_becomes_inactive_when_expiry_looks_first_and_writes_later(
    over: Subscription, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the condition is not read again under the row's lock."""

    def look_then_write(*, limit: int) -> list[Expired]:
        over = Subscription.objects.filter(current_period_end__lte=timezone.now())
        expired = [Expired(row.pk, row.user_id, row.current_period_end) for row in over[:limit]]
        at_once(lambda: deliver(paid()))
        ids = [row.subscription_id for row in expired]
        Subscription.objects.filter(pk__in=ids).update(status="INACTIVE")
        return expired

    monkeypatch.setattr(tasks, "expire", look_then_write)

    tasks.expire_batch()

    with pytest.raises(AssertionError):
        _assert_paid_for(over)
