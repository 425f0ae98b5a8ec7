"""Two people, or one impatient one, decide about the same thing at the same moment."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from billing.models import Grant, Payment
from billing.settling import settle
from subscriptions.models import Plan, User
from tests.factories import StaffFactory, UserFactory
from tests.faults.threads import Meeting, at_once
from tests.faults.truths import assert_periods_adjacent
from tests.sending import deliver, paid
from webhooks import process, review
from webhooks.audit import Actor
from webhooks.models import AuditEntry, WebhookEvent
from webhooks.providers.base import Result
from webhooks.review import CannotDecide

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def first() -> Actor:
    return Actor.staff(StaffFactory.create(email="first@example.com"))


@pytest.fixture
def second() -> Actor:
    return Actor.staff(StaffFactory.create(email="second@example.com"))


@pytest.fixture
def parked(monthly: Plan) -> WebhookEvent:
    """Its user is there by now, but nobody has linked the payment yet."""
    assert deliver(paid(email="parked@example.com")).json()["status"] == "unlinked"
    # In bulk, so that no signal links the payment.
    User.objects.bulk_create([User(email="parked@example.com")])
    return WebhookEvent.objects.get()


@pytest.fixture
def unlinked(monthly: Plan) -> Payment:
    assert deliver(paid(email=None)).json()["status"] == "unlinked"
    return Payment.objects.get()


def _both(*calls: Callable[[], Any], expected: type[Exception] | tuple[()] = ()) -> list[Any]:
    """At once: whoever comes first waits, with its locks, until the other waits for them."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(process, "settle", Meeting(2).after(settle))
        return at_once(*calls, expected=expected)


def _audited(action: str) -> list[str]:
    return sorted(AuditEntry.objects.filter(action=action).values_list("actor", flat=True))


def test_it_applies_once_when_two_people_reprocess_the_same_event_at_once(
    parked: WebhookEvent, first: Actor, second: Actor
) -> None:
    outcomes = _both(
        lambda: review.reprocess(parked, first), lambda: review.reprocess(parked, second)
    )

    assert {outcome.result for outcome in outcomes} == {Result.PROCESSED, Result.DUPLICATE}
    assert_periods_adjacent(User.objects.get(email="parked@example.com"), number=1)
    assert _audited("event_reprocessed") == sorted([first.name, second.name])
    assert len(_audited("payment_applied")) == 1


def test_it_applies_once_when_reprocess_is_double_clicked(
    parked: WebhookEvent, first: Actor
) -> None:
    _both(*[lambda: review.reprocess(parked, first)] * 2)
    review.reprocess(parked, first)

    assert_periods_adjacent(User.objects.get(email="parked@example.com"), number=1)
    assert _audited("payment_applied") == [first.name]


def test_one_of_two_people_wins_when_they_link_a_payment_to_different_users(
    unlinked: Payment, first: Actor, second: Actor
) -> None:
    anna, boris = UserFactory.create(), UserFactory.create()
    seen_by_both = Payment.objects.get(), Payment.objects.get()

    outcomes = _both(
        lambda: review.link(seen_by_both[0], anna, first, "asked"),
        lambda: review.link(seen_by_both[1], boris, second, "asked"),
        expected=CannotDecide,
    )

    (lost,) = (outcome for outcome in outcomes if isinstance(outcome, CannotDecide))
    winner = (boris, anna)[outcomes.index(lost)]
    assert Payment.objects.get().user == winner
    assert_periods_adjacent(winner, number=1)
    assert Grant.objects.count() == 1


def test_it_applies_once_when_link_is_double_clicked(unlinked: Payment, first: Actor) -> None:
    user = UserFactory.create()
    seen_at_each_click = [Payment.objects.get() for _ in range(3)]
    clicks = [partial(review.link, seen, user, first, "asked") for seen in seen_at_each_click]

    _both(*clicks[:2], expected=CannotDecide)
    with pytest.raises(CannotDecide):
        clicks[2]()

    assert_periods_adjacent(user, number=1)
    assert _audited("payment_applied") == [first.name]


def test_it_applies_once_when_two_people_apply_a_mismatch_anyway(
    monthly: Plan, first: Actor, second: Actor, buyer: User
) -> None:
    assert deliver(paid(amount="1.00")).json()["status"] == "failed_final"
    event = WebhookEvent.objects.get()

    _both(
        lambda: review.apply_anyway(event, first, "gift"),
        lambda: review.apply_anyway(event, second, "gift"),
        expected=CannotDecide,
    )

    assert_periods_adjacent(buyer, number=1)
    assert len(_audited("payment_applied")) == 1
