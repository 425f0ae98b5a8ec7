"""A part of the money went back: it adds up, and a person says what becomes of what was given."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from django.db.models import F

from billing import wallets
from billing.models import Booking, Grant, Payment, Refund, Wallet
from subscriptions.models import Plan, Subscription, User
from tests.factories import BookingFactory, TopupFactory
from tests.looking import event_of, state_of
from tests.people import ANNA
from tests.sending import deliver, paid, result
from webhooks import review
from webhooks.models import AuditEntry, WebhookEvent

pytestmark = pytest.mark.django_db


def _tell(status: str, **fields: Any) -> tuple[int, str]:
    return result(deliver(paid(external_payment_id="p", status=status, **fields)))


def _part(refund_id: str | None, amount: str | None, **fields: Any) -> tuple[int, str]:
    told = {"event_id": refund_id, "refund_id": refund_id, "amount": amount, **fields}
    return _tell("partially_refunded", **told)


def _refunded() -> tuple[str, Any]:
    payment = Payment.objects.get()
    return payment.status, payment.amount_refunded


def _period() -> tuple[datetime, datetime]:
    grant = Grant.objects.get()
    assert grant.starts_at
    assert grant.ends_at
    return grant.starts_at, grant.ends_at


def _length() -> timedelta:
    starts_at, ends_at = _period()
    return ends_at - starts_at


@pytest.fixture
def month(buyer: User, monthly: Plan) -> timedelta:
    """One is paid for; how long it is."""
    assert _tell("paid") == (200, "processed")
    return _length()


@pytest.fixture
def topped_up(buyer: User) -> Wallet:
    order = TopupFactory.create(user=buyer, amount="990")
    _tell("paid", merchant_uid=order.merchant_uid)
    return Wallet.objects.get()


def test_a_partial_refund_leaves_the_time_to_a_person(month: timedelta) -> None:
    assert _part("a", "330") == (200, "processed")

    assert state_of("a") == ("PROCESSED", "PARTIAL_REFUND", "OPEN")
    assert _refunded() == ("SUCCEEDED", 330)
    assert (_length(), Grant.objects.get().revoked_at) == (month, None)
    refund = Refund.objects.get()
    assert (refund.external_refund_id, refund.status) == ("a", "SUCCEEDED")
    assert refund.amount == 330


def test_the_same_refund_told_twice_counts_once(month: timedelta) -> None:
    _part("a", "330")

    assert _part("a", "330", event_id="again") == (200, "ignored")

    assert _refunded() == ("SUCCEEDED", 330)
    assert Refund.objects.count() == 1
    assert state_of("again")[2] is None


def test_different_refunds_add_up_and_each_asks_a_person(month: timedelta) -> None:
    _part("a", "330")
    _part("b", "330")

    assert _refunded() == ("SUCCEEDED", 660)
    assert state_of("a")[2] == state_of("b")[2] == "OPEN"


@pytest.mark.parametrize(
    ("parts", "total"),
    [
        ([("a", "100", "100"), ("b", "200", "300")], 300),
        # The provider knows of refunds that it never told us of.
        ([("a", "100", "400")], 400),
        # Its total is older than what we know.
        ([("a", "150", "150"), ("b", "100", "150")], 250),
        # Told with the payment's own sum instead of the refund's.
        ([("a", "990", "100")], 100),
        ([("a", None, "100"), ("b", None, "250")], 250),
    ],
)
def test_the_larger_of_the_sum_and_the_running_total_counts(
    month: timedelta, parts: list[tuple[str, str | None, str]], total: int
) -> None:
    for refund_id, amount, so_far in parts:
        _part(refund_id, amount, amount_refunded=so_far)

    assert _refunded() == ("SUCCEEDED", total)


def test_without_an_id_two_cannot_be_told_from_one_told_twice(month: timedelta) -> None:
    _part(None, "330", event_id="one")
    _part(None, "330", event_id="two")

    assert _refunded() == ("SUCCEEDED", 330)
    # A person can.
    assert state_of("one")[2] == state_of("two")[2] == "OPEN"


@pytest.mark.parametrize("how", ["by id", "by running total", "by its own total"])
def test_parts_that_add_up_to_all_of_it_are_a_full_refund(month: timedelta, how: str) -> None:
    _part("a", "330", amount_refunded=None if how == "by id" else "330")
    if how == "by its own total":
        _tell("refunded", amount=None, amount_refunded="990")
    else:
        _part("b", "660", amount_refunded=None if how == "by id" else "990")

    assert _refunded() == ("REFUNDED", 990)
    assert Grant.objects.get().revoked_because == "REFUNDED"
    assert Subscription.objects.get().status == "INACTIVE"
    # Nothing is left to be decided.
    assert not WebhookEvent.objects.filter(review="OPEN").exists()


def test_a_refunded_whose_own_total_is_less_is_a_partial_one(month: timedelta) -> None:
    _tell("refunded", event_id="a", amount=None, amount_refunded="100")

    assert state_of("a") == ("PROCESSED", "PARTIAL_REFUND", "OPEN")
    assert _refunded() == ("SUCCEEDED", 100)


def test_never_more_is_refunded_than_was_paid(month: timedelta) -> None:
    _part("a", "600")
    _part("b", "600")

    assert _refunded() == ("REFUNDED", 990)


@pytest.mark.parametrize("amount", [None, "330"])
@pytest.mark.parametrize("first", ["refund", "failure"])
def test_a_failed_refund_does_not_count(month: timedelta, amount: str | None, first: str) -> None:
    failure = {"event_id": "f", "refund_id": "a", "amount": amount}
    if first == "failure":
        _tell("refund_failed", **failure)
    _part("a", "330")
    if first == "refund":
        _tell("refund_failed", **failure)
    _part("b", "100")

    assert _refunded() == ("SUCCEEDED", 100)
    assert set(Refund.objects.values_list("external_refund_id", "status")) == {
        ("a", "FAILED"),
        ("b", "SUCCEEDED"),
    }
    assert _length() == month


def test_a_part_that_failed_makes_a_person_look_when_the_parts_add_up_to_all(
    month: timedelta,
) -> None:
    """Whether it failed before or after the other part was paid back, nobody can tell."""
    _part("a", "330")
    _tell("refund_failed", refund_id="a", amount=None)

    _part("b", "660")
    assert state_of("b") == ("PROCESSED", "REINSTATE_DUE", "OPEN")
    review.reinstate(event_of("b"), ANNA, "a third of the money stayed")

    assert _refunded() == ("SUCCEEDED", 660)
    assert Grant.objects.get().revoked_at is None
    assert _length() == month


def test_keep_leaves_everything_and_says_who_kept_it(month: timedelta) -> None:
    _part("a", "330")

    review.keep(event_of("a"), ANNA, "goodwill")

    assert state_of("a") == ("PROCESSED", "PARTIAL_REFUND", "RESOLVED")
    assert _length() == month
    entry = AuditEntry.objects.get(action="review_kept")
    assert (entry.actor, entry.reason, entry.event_id) == (
        "staff:anna",
        "goodwill",
        event_of("a").pk,
    )
    with pytest.raises(review.CannotDecide):
        review.keep(event_of("a"), ANNA, "again")


def test_shorten_takes_as_large_a_part_as_was_refunded(month: timedelta) -> None:
    _part("a", "330")

    review.shorten(event_of("a"), ANNA, "a third")

    assert abs(_length() - month * 2 / 3) <= timedelta(seconds=1)
    assert Subscription.objects.get().current_period_end == _period()[1]
    assert state_of("a")[2] == "RESOLVED"
    entry = AuditEntry.objects.get(action="payment_shortened")
    assert (entry.actor, entry.reason) == ("staff:anna", "a third")
    assert Payment.objects.get().subscription_applied_at is not None


def test_shorten_twice_shortens_once_and_the_next_part_by_itself(month: timedelta) -> None:
    _part("a", "330")
    seen = event_of("a")
    assert review.shorten(seen, ANNA, "a third").result == "processed"
    assert review.shorten(seen, ANNA, "a third").result == "duplicate"
    _part("b", "330")

    review.shorten(event_of("b"), ANNA, "another third")

    assert abs(_length() - month / 3) <= timedelta(seconds=2)
    assert AuditEntry.objects.filter(action="payment_shortened").count() == 2


def test_one_shortening_covers_all_parts_refunded_so_far(month: timedelta) -> None:
    _part("a", "330")
    _part("b", "330")

    review.shorten(event_of("b"), ANNA, "both")

    assert abs(_length() - month / 3) <= timedelta(seconds=1)
    assert state_of("a")[2] == state_of("b")[2] == "RESOLVED"


def test_what_a_person_kept_stays_when_another_part_is_shortened(month: timedelta) -> None:
    _part("a", "330")
    review.keep(event_of("a"), ANNA, "goodwill")
    _part("b", "330")

    review.shorten(event_of("b"), ANNA, "this third")

    assert abs(_length() - month * 2 / 3) <= timedelta(seconds=1)


def test_all_of_it_comes_back_when_all_refunds_failed(month: timedelta) -> None:
    """Shortened for one part and revoked for the other; in the end no money went back."""
    _part("a", "330")
    review.shorten(event_of("a"), ANNA, "a third")
    _part("b", "660")
    for refund_id in ("a", "b"):
        _tell("refund_failed", refund_id=refund_id, amount=None, event_id=f"f-{refund_id}")

    for asking in WebhookEvent.objects.filter(error_code="REINSTATE_DUE").order_by("pk"):
        review.reinstate(asking, ANNA, "bounced")

    assert _refunded() == ("SUCCEEDED", 0)
    assert abs(_length() - month) <= timedelta(seconds=1)


def test_shorten_takes_only_what_lies_ahead(month: timedelta) -> None:
    by = month - timedelta(days=1)
    Grant.objects.update(starts_at=F("starts_at") - by, ends_at=F("ends_at") - by)
    Subscription.objects.update(current_period_end=F("current_period_end") - by)
    _part("a", "330")

    review.shorten(event_of("a"), ANNA, "a third")

    assert _length() == month - timedelta(days=1)
    assert Subscription.objects.get().status == "INACTIVE"


def test_what_lies_behind_a_shortened_grant_moves_up(month: timedelta) -> None:
    deliver(paid(external_payment_id="q"))
    behind = Grant.objects.get(payment__external_payment_id="q")
    assert behind.ends_at
    assert behind.starts_at
    _part("a", "330")

    review.shorten(event_of("a"), ANNA, "a third")

    moved = Grant.objects.get(pk=behind.pk)
    first = Grant.objects.exclude(pk=behind.pk).get()
    assert moved.starts_at
    assert moved.starts_at == first.ends_at
    assert moved.ends_at == moved.starts_at + (behind.ends_at - behind.starts_at)
    assert Subscription.objects.get().current_period_end == moved.ends_at


def test_a_refund_that_failed_after_shortening_can_be_given_back(month: timedelta) -> None:
    _part("a", "330")
    review.shorten(event_of("a"), ANNA, "a third")

    _tell("refund_failed", refund_id="a", amount=None, event_id="f")
    assert state_of("f") == ("PROCESSED", "REINSTATE_DUE", "OPEN")
    review.reinstate(event_of("f"), ANNA, "bounced")

    assert abs(_length() - month) <= timedelta(seconds=1)
    assert state_of("f")[2] == "RESOLVED"


def test_revoke_takes_all_of_it_back_although_the_payment_stands(month: timedelta) -> None:
    _part("a", "330")

    review.revoke(event_of("a"), ANNA, "abuse")

    grant = Grant.objects.get()
    assert (grant.revoked_because, _refunded()) == ("staff", ("SUCCEEDED", 330))
    assert Payment.objects.get().subscription_applied_at is None
    assert Subscription.objects.get().status == "INACTIVE"
    assert state_of("a")[2] == "RESOLVED"
    entry = AuditEntry.objects.get(action="payment_revoked")
    assert (entry.actor, entry.reason) == ("staff:anna", "abuse")
    # It stands whatever else comes late.
    assert _tell("paid") == (200, "ignored")
    assert Grant.objects.get().revoked_at == grant.revoked_at


def test_revoke_twice_revokes_once(month: timedelta) -> None:
    _part("a", "330")
    seen = event_of("a")

    assert review.revoke(seen, ANNA, "abuse").result == "processed"
    assert review.revoke(seen, ANNA, "abuse").result == "duplicate"

    assert AuditEntry.objects.filter(action="payment_revoked").count() == 1


def test_revoke_resolves_its_review_although_a_dispute_was_won_before(month: timedelta) -> None:
    """What was won before has nothing to do with why a person takes it back now."""
    _tell("disputed")
    _tell("dispute_won")
    _part("a", "330")

    review.revoke(event_of("a"), ANNA, "abuse")

    assert state_of("a")[2] == "RESOLVED"


@pytest.mark.parametrize("act", [review.shorten, review.revoke, review.keep])
def test_nothing_is_decided_without_a_reason(month: timedelta, act: Any) -> None:
    _part("a", "330")

    with pytest.raises(review.CannotDecide):
        act(event_of("a"), ANNA, " ")

    assert state_of("a")[2] == "OPEN"
    assert _length() == month


def test_a_booking_cannot_be_shortened(buyer: User) -> None:
    booking = BookingFactory.create(order__user=buyer, order__amount="990")
    _tell("paid", merchant_uid=booking.order.merchant_uid)
    _part("a", "330")

    review.shorten(event_of("a"), ANNA, "a third")

    assert state_of("a")[1:] == ("PARTIAL_REFUND", "OPEN")
    assert Booking.objects.get().status == "CONFIRMED"
    review.revoke(event_of("a"), ANNA, "then all of it")
    assert Booking.objects.get().status == "CANCELED"


@pytest.mark.parametrize("amount", ["495", "330", "100.10"])
def test_shorten_debits_the_part_of_a_topup(topped_up: Wallet, amount: str) -> None:
    """Also where the part of the whole is no finite decimal."""
    _part("a", amount)

    review.shorten(event_of("a"), ANNA, "in proportion")

    assert Wallet.objects.get().balance == Decimal(990) - Decimal(amount)
    assert state_of("a")[2] == "RESOLVED"


def test_a_refund_of_the_rest_debits_the_rest_of_a_topup(topped_up: Wallet) -> None:
    _part("a", "495")
    review.shorten(event_of("a"), ANNA, "half")

    _part("b", "495")

    assert _refunded() == ("REFUNDED", 990)
    assert Wallet.objects.get().balance == 0


def test_a_wallet_too_short_for_its_part_is_for_a_person(topped_up: Wallet) -> None:
    held = uuid4()
    wallets.reserve(payment_id=held, wallet_id=topped_up.pk, amount=Decimal(900))
    _part("a", "495")

    review.shorten(event_of("a"), ANNA, "half")

    assert state_of("a") == ("FAILED_FINAL", "WALLET_SHORT", "OPEN")
    assert Wallet.objects.get().balance == 990
    wallets.release(held)
    review.reprocess(event_of("a"), ANNA)
    # It was said that half of it goes, or it is asked again.
    assert Wallet.objects.get().balance == 495 or state_of("a")[1:] == ("PARTIAL_REFUND", "OPEN")


def test_what_came_back_before_it_was_given_is_heard(buyer: User, monthly: Plan) -> None:
    _part("a", "330")

    _tell("paid", event_id="e")

    assert _refunded() == ("SUCCEEDED", 330)
    assert state_of("e") == ("PROCESSED", "PARTIAL_REFUND", "OPEN")
    review.shorten(event_of("e"), ANNA, "a third")
    assert Grant.objects.get().shortened_for == 330


@pytest.mark.parametrize("status", ["partially_refunded", "refunded"])
def test_a_refund_in_another_currency_is_for_a_person(month: timedelta, status: str) -> None:
    _tell(
        status, refund_id="a", amount="1000", amount_refunded="1000", currency="KRW", event_id="k"
    )

    assert _refunded() == ("SUCCEEDED", 0)
    assert state_of("k") == ("PROCESSED", "PARTIAL_REFUND", "OPEN")


def test_a_failed_refund_gives_back_what_was_really_cut(month: timedelta) -> None:
    """A third was refunded when only a day was left: a day was cut, and a day comes back."""
    by = month - timedelta(days=1)
    Grant.objects.update(starts_at=F("starts_at") - by, ends_at=F("ends_at") - by)
    Subscription.objects.update(current_period_end=F("current_period_end") - by)
    end = Subscription.objects.get().current_period_end
    _part("a", "330")
    review.shorten(event_of("a"), ANNA, "a third")
    _tell("refund_failed", refund_id="a", amount=None, event_id="f")

    review.reinstate(event_of("f"), ANNA, "bounced")

    assert abs(Subscription.objects.get().current_period_end - end) < timedelta(minutes=1)
    assert Subscription.objects.get().status == "ACTIVE"


@pytest.mark.parametrize("event_id", ["before", "zafter"])
def test_the_failure_of_a_part_does_not_say_how_much_the_part_was(
    month: timedelta, event_id: str
) -> None:
    """Some senders put the payment's own amount into every event; and without times the order of
    events is that of their ids."""
    _part("a", "330", event_id="part")

    _tell("refund_failed", refund_id="a", amount="990", event_id=event_id)

    assert _refunded() == ("SUCCEEDED", 0)
    assert Refund.objects.get().amount == 330
    assert Grant.objects.get().revoked_at is None
