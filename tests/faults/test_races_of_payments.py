"""What the locks and unique keys of a payment and its subscription prevent.

Each race is shown twice with the same forced interleaving: with a guard taken away the damage is
there; with the code as it is it is not.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from billing import giving, recording, settling
from billing.linking import find_user
from billing.models import Grant, Payment
from subscriptions import extending
from subscriptions.models import Plan, Subscription, User
from tests.factories import SubscriptionFactory
from tests.faults.threads import Meeting, at_once
from tests.faults.truths import assert_periods_adjacent
from tests.sending import deliver, paid
from webhooks import process
from webhooks.models import WebhookEvent

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def subscription(buyer: User) -> Subscription:
    return SubscriptionFactory.create(user=buyer)


def _deliver_at_once(*payloads: dict[str, Any]) -> list[str]:
    answers = at_once(*(lambda payload=payload: deliver(payload) for payload in payloads))
    return [answer.json()["status"] for answer in answers]


def _end_without_lock(user_id: UUID) -> tuple[UUID, datetime]:
    row = Subscription.objects.get(user_id=user_id)
    return row.pk, row.current_period_end


@pytest.mark.breaks_invariants("grants_do_not_overlap", "subscription_ends_with_its_last_grant")
def test_an_extension_is_lost_without_the_lock_of_the_subscription(
    subscription: Subscription, buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: both read the same end before either writes."""
    read = Meeting(2).after(_end_without_lock)
    monkeypatch.setattr(extending, "_find_or_create_locked", read)

    assert _deliver_at_once(paid(), paid()) == ["processed", "processed"]

    first, second = Grant.objects.order_by("ends_at")
    assert first.ends_at is not None
    assert second.starts_at is not None
    assert second.starts_at < first.ends_at
    with pytest.raises(AssertionError):
        assert_periods_adjacent(buyer, number=2)


def test_no_extension_is_lost_when_two_payments_want_one_subscription(
    subscription: Subscription, buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Meeting(2).after(extending._find_or_create_locked)
    monkeypatch.setattr(extending, "_find_or_create_locked", read)

    assert _deliver_at_once(paid(), paid()) == ["processed", "processed"]

    assert_periods_adjacent(buyer, number=2)


def test_no_extension_is_lost_when_two_payments_create_one_subscription(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Meeting(2).after(extending._find_or_create_locked)
    monkeypatch.setattr(extending, "_find_or_create_locked", read)

    assert _deliver_at_once(paid(), paid()) == ["processed", "processed"]

    assert_periods_adjacent(buyer, number=2)


@pytest.fixture
def known_payment(monthly: Plan) -> Payment:
    """It exists, and nobody was given anything for it yet."""
    deliver(paid(external_payment_id="pay-race", status="pending"))
    return Payment.objects.get()


def _record_without_lock(*args: Any, **_kwargs: Any) -> tuple[Payment, bool, Any, str]:
    """Finds the payment as it was, and lets nobody wait."""
    fact, row, *_ = args
    payment = Payment.objects.get(external_payment_id=fact.external_payment_id)
    row.payment = payment
    row.save(force_insert=True)
    with connection.cursor() as cursor:
        cursor.execute("SELECT now(), pg_current_xact_id()::text")
        now, txid = cursor.fetchone()
    return payment, False, now, txid


def _grant_without_guard(recorded: Any, bargain: Any, effect: Any) -> None:
    payment = recorded.payment
    payment.plan, payment.subscription_id = bargain.plan, effect.subscription_id
    payment.subscription_applied_at = recorded.now
    Grant.objects.create(
        payment=payment,
        subscription_id=effect.subscription_id,
        plan=bargain.plan,
        starts_at=effect.starts_at,
        ends_at=effect.ends_at,
    )
    payment.save()


def _without_the_other_guards(monkeypatch: pytest.MonkeyPatch) -> None:
    """The payment's lock, the condition on its mark and on its status, the messages' numbers."""
    monkeypatch.setattr(recording, "_find_or_create_locked", _record_without_lock)
    # Both have looked for a grant by then.
    monkeypatch.setattr(giving, "find_user", Meeting(2).after(find_user))
    monkeypatch.setattr(giving, "_grant", _grant_without_guard)
    monkeypatch.setattr(settling, "_save", lambda *_: None)
    monkeypatch.setattr(process, "write", lambda *_: None)


@pytest.mark.breaks_invariants(
    "payment_equals_its_facts",
    "applied_means_one_live_grant",
    "succeeded_is_accounted_for",
    "processed_success_was_applied",
)
def test_a_payment_is_applied_twice_without_its_lock_and_its_unique_grant(
    known_payment: Payment, buyer: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: with neither the lock nor the database's proof both events grant."""
    _without_the_other_guards(monkeypatch)
    constraint = _drop_unique_grant()
    try:
        payloads = [paid(external_payment_id="pay-race") for _ in range(2)]
        assert _deliver_at_once(*payloads) == ["processed", "processed"]

        assert Grant.objects.filter(payment=known_payment).count() == 2
        with pytest.raises(AssertionError):
            assert_periods_adjacent(buyer, number=1)
    finally:
        Grant.objects.all().delete()
        _add_unique_grant(constraint)


def test_the_unique_grant_alone_keeps_a_payment_from_being_applied_twice(
    known_payment: Payment, buyer: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second line of defence: should the lock ever be lost, the database refuses."""
    _without_the_other_guards(monkeypatch)

    payloads = [paid(external_payment_id="pay-race") for _ in range(2)]
    assert sorted(_deliver_at_once(*payloads)) == ["failed_retryable", "processed"]

    assert_periods_adjacent(buyer, number=1)
    failed = WebhookEvent.objects.get(status="FAILED_RETRYABLE")
    assert failed.error_code == "PROCESSING_ERROR"


def test_a_payment_is_applied_once_when_two_of_its_events_come_at_once(
    known_payment: Payment, buyer: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Meeting(2).after(recording._find_or_create_locked)
    monkeypatch.setattr(recording, "_find_or_create_locked", found)

    payloads = [paid(external_payment_id="pay-race") for _ in range(2)]
    assert _deliver_at_once(*payloads) == ["processed", "processed"]

    assert_periods_adjacent(buyer, number=1)


def _drop_unique_grant() -> str:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT conname FROM pg_constraint"
            " WHERE conrelid = 'billing_grant'::regclass AND contype = 'u'"
        )
        (name,) = cursor.fetchone()
        cursor.execute(f"ALTER TABLE billing_grant DROP CONSTRAINT {name}")
    return str(name)


def _add_unique_grant(name: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE billing_grant ADD CONSTRAINT {name} UNIQUE (payment_id)")
