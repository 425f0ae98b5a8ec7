"""Money that went back takes back what it bought, once; used time stays used."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now

from billing import wallets
from billing.models import Booking, EntryKind, Grant, Order, Payment, Wallet, WalletEntry
from billing.purchases import subscription_time
from subscriptions.models import Plan, Subscription, User
from tests.factories import BookingFactory, OrderFactory, TopupFactory
from tests.looking import event_of, state_of
from tests.people import ANNA
from tests.sending import deliver, paid, result
from webhooks import review
from webhooks.models import AuditEntry, WebhookEvent

pytestmark = pytest.mark.django_db

DAY = timedelta(days=1)


def _now() -> datetime:
    """The database's clock stands still within a test's transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        (now,) = cursor.fetchone()
    assert isinstance(now, datetime)
    return now


def _tell(payment_id: str, status: str, **fields: Any) -> tuple[int, str]:
    if status == "refund_failed":
        fields = {"amount": None, **fields}
    return result(deliver(paid(external_payment_id=payment_id, status=status, **fields)))


def _grant(payment_id: str) -> Grant:
    return Grant.objects.get(payment__external_payment_id=payment_id)


def _length(grant: Grant) -> timedelta:
    assert grant.starts_at
    assert grant.ends_at
    return grant.ends_at - grant.starts_at


def _days_pass(days: int) -> None:
    """Everything that was given lies that much further back."""
    by = days * DAY
    Grant.objects.update(starts_at=F("starts_at") - by, ends_at=F("ends_at") - by)
    Subscription.objects.update(current_period_end=F("current_period_end") - by)


@pytest.fixture
def three(buyer: User, monthly: Plan) -> list[Grant]:
    """Three months, one behind the other, the first beginning now."""
    for name in ("a", "b", "c"):
        assert _tell(name, "paid") == (200, "processed")
    return [_grant(name) for name in ("a", "b", "c")]


def test_a_refund_takes_back_what_the_payment_gave(buyer: User, monthly: Plan) -> None:
    _tell("p", "paid")

    assert _tell("p", "refunded", event_id="back") == (200, "processed")

    assert state_of("back") == ("PROCESSED", None, None)
    payment, grant = Payment.objects.get(), Grant.objects.get()
    assert payment.status == "REFUNDED"
    assert payment.amount_refunded == 990
    assert payment.subscription_applied_at is None
    assert (grant.revoked_at, grant.revoked_because) == (_now(), "REFUNDED")
    assert grant.starts_at == grant.ends_at
    subscription = Subscription.objects.get()
    assert (subscription.status, subscription.current_period_end) == ("INACTIVE", _now())


def test_a_cancel_after_the_payment_takes_back_too(buyer: User) -> None:
    order = OrderFactory.create(user=buyer, amount="990")
    told = {"merchant_uid": order.merchant_uid}
    _tell("p", "paid", occurred_at="2026-01-01T10:00:00Z", **told)

    answer = _tell("p", "canceled", occurred_at="2026-01-01T11:00:00Z", **told)

    assert answer == (200, "processed")
    assert (Payment.objects.get().status, Order.objects.get().status) == ("CANCELED", "CANCELED")
    assert Grant.objects.get().revoked_because == "CANCELED"
    assert Subscription.objects.get().status == "INACTIVE"


def test_a_cancel_that_nobody_can_place_takes_nothing_back(buyer: User, monthly: Plan) -> None:
    _tell("p", "paid")

    assert _tell("p", "canceled", event_id="c") == (200, "failed_final")

    assert state_of("c") == ("FAILED_FINAL", "CANCEL_UNCONFIRMED", "OPEN")
    assert Grant.objects.get().revoked_at is None
    assert Payment.objects.get().status == "SUCCEEDED"


def test_a_cancel_can_be_confirmed_by_a_person(buyer: User, monthly: Plan) -> None:
    """Without the provider's times it must be confirmed or reviewed: a review that can only say no
    is none."""
    _tell("p", "paid")
    _tell("p", "canceled", event_id="c")

    review.revoke(event_of("c"), ANNA, "looked it up: the money went back")

    assert Grant.objects.get().revoked_at is not None
    assert state_of("c")[2] == "RESOLVED"


def test_what_was_revoked_is_not_revoked_again(three: list[Grant]) -> None:
    _tell("a", "refunded")
    before = list(Grant.objects.order_by("pk").values_list())

    _tell("a", "refunded", event_id="again")
    _tell("a", "dispute_lost", event_id="lost")
    review.reprocess(event_of("again"), ANNA)

    assert list(Grant.objects.order_by("pk").values_list()) == before
    assert AuditEntry.objects.filter(action="payment_revoked").count() == 1


def _somebody_is_faster(monkeypatch: pytest.MonkeyPatch, act: str, **change: Any) -> None:
    """Between our look at the grant and our change."""
    real = getattr(subscription_time, act)

    def act_late(grant: Grant, now: datetime) -> Any:
        Grant.objects.filter(pk=grant.pk).update(**change)
        return real(grant, now)

    monkeypatch.setattr(subscription_time, act, act_late)


def _given() -> tuple[list[Any], list[Any]]:
    return list(Grant.objects.values_list()), list(Subscription.objects.values_list())


def test_a_grant_that_somebody_else_revoked_meanwhile_is_left_alone(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last guard, with the payment's lock out of the way."""
    _tell("p", "paid")
    before = _given()
    _somebody_is_faster(monkeypatch, "take_back", revoked_at=Now())

    assert _tell("p", "refunded", event_id="back") == (200, "failed_retryable")

    assert event_of("back").error_message == "ChangedMeanwhile"
    # Rolled back with everything else.
    assert _given() == before


def test_a_grant_that_somebody_else_reinstated_meanwhile_is_left_alone(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    for status in ("paid", "dispute_lost", "dispute_won"):
        _tell("p", status, event_id=status)
    before = _given()
    _somebody_is_faster(monkeypatch, "reinstate", revoked_at=None)

    with pytest.raises(review.CannotDecide, match="ChangedMeanwhile"):
        review.reinstate(event_of("dispute_won"), ANNA, "won")

    assert _given() == before


@pytest.mark.parametrize("status", ["paid", "succeeded"])
def test_a_late_success_of_a_refunded_payment_grants_nothing(
    buyer: User, monthly: Plan, status: str
) -> None:
    for kind in ("paid", "refunded"):
        _tell("p", kind)

    assert _tell("p", status, event_id="late") == (200, "ignored")

    assert state_of("late") == ("IGNORED", "OUT_OF_ORDER", None)
    assert Grant.objects.get().revoked_at is not None
    assert Subscription.objects.get().status == "INACTIVE"


@pytest.mark.parametrize("status", ["refunded", "dispute_lost"])
def test_a_refund_that_comes_first_leaves_nothing_to_give(
    buyer: User, monthly: Plan, status: str
) -> None:
    assert _tell("p", status) == (200, "ignored")

    assert _tell("p", "paid") == (200, "ignored")

    assert not Grant.objects.exists()
    assert Payment.objects.get().status == "REFUNDED"


@pytest.mark.parametrize("name", ["a", "b", "c"])
def test_later_grants_keep_their_length_and_move_up(three: list[Grant], name: str) -> None:
    lengths = {grant.pk: _length(grant) for grant in three}
    revoked = _grant(name)

    _tell(name, "refunded")

    left = list(Grant.objects.filter(revoked_at__isnull=True).order_by("starts_at"))
    assert [grant.pk for grant in left] == [g.pk for g in three if g.pk != revoked.pk]
    assert [_length(grant) for grant in left] == [lengths[grant.pk] for grant in left]
    assert [left[0].starts_at, left[1].starts_at] == [_now(), left[0].ends_at]
    # One entirely in the future is cut at its own beginning.
    cut = _grant(name)
    assert (cut.starts_at, cut.ends_at, cut.unused) == (
        revoked.starts_at,
        revoked.starts_at,
        lengths[cut.pk],
    )
    subscription = Subscription.objects.get()
    assert (subscription.status, subscription.current_period_end) == ("ACTIVE", left[1].ends_at)


def test_used_time_stays_used(three: list[Grant]) -> None:
    _days_pass(10)
    first, second, third = (_grant(name) for name in "abc")

    _tell("a", "refunded")

    cut, moved, last = (_grant(name) for name in "abc")
    assert (cut.starts_at, cut.ends_at) == (first.starts_at, _now())
    assert cut.unused == _length(first) - 10 * DAY
    assert (moved.starts_at, _length(moved)) == (_now(), _length(second))
    assert (last.starts_at, _length(last)) == (moved.ends_at, _length(third))
    assert Subscription.objects.get().current_period_end == last.ends_at


def test_what_is_over_leaves_the_rest_alone(three: list[Grant]) -> None:
    _days_pass(40)
    first, second, third = (_grant(name) for name in "abc")
    end = Subscription.objects.get().current_period_end

    _tell("a", "refunded")

    over = _grant("a")
    assert (over.ends_at, over.unused) == (first.ends_at, timedelta(0))
    assert over.revoked_at is not None
    assert [_grant("b").starts_at, _grant("c").starts_at] == [second.starts_at, third.starts_at]
    assert Subscription.objects.get().current_period_end == end


def test_a_later_grant_behind_a_gap_is_not_moved(buyer: User, monthly: Plan) -> None:
    _tell("old", "paid")
    _days_pass(400)
    _tell("new", "paid")
    new = _grant("new")
    assert new.starts_at == _now()

    _tell("old", "refunded")

    assert (_grant("new").starts_at, _grant("new").ends_at) == (new.starts_at, new.ends_at)
    subscription = Subscription.objects.get()
    assert (subscription.status, subscription.current_period_end) == ("ACTIVE", new.ends_at)


def test_a_customer_with_nothing_left_is_inactive(three: list[Grant]) -> None:
    _days_pass(10)

    for name in ("b", "a", "c"):
        assert Subscription.objects.get().status == "ACTIVE"
        _tell(name, "refunded")

    subscription = Subscription.objects.get()
    assert (subscription.status, subscription.current_period_end) == ("INACTIVE", _now())


@pytest.mark.parametrize(("refunded", "status"), [("a", "CANCELED"), ("abc", "INACTIVE")])
def test_a_canceled_subscription_stays_so_while_time_is_left(
    three: list[Grant], refunded: str, status: str
) -> None:
    review.cancel_renewal(Subscription.objects.get(), ANNA, "asked for it")

    for name in refunded:
        _tell(name, "refunded")

    assert Subscription.objects.get().status == status


def test_time_that_was_there_before_the_payment_stays(buyer: User, monthly: Plan) -> None:
    end = _now() + 100 * DAY
    Subscription.objects.create(user=buyer, status="ACTIVE", current_period_end=end)
    _tell("p", "paid")

    _tell("p", "refunded")

    subscription = Subscription.objects.get()
    assert (subscription.status, subscription.current_period_end) == ("ACTIVE", end)


def test_a_refund_cancels_the_booking_and_the_order(buyer: User) -> None:
    booking = BookingFactory.create(order__user=buyer, order__amount="990")
    told = {"merchant_uid": booking.order.merchant_uid, "email": None}
    _tell("p", "paid", **told)

    assert _tell("p", "refunded", **told) == (200, "processed")

    assert (Booking.objects.get().status, Order.objects.get().status) == ("CANCELED", "REFUNDED")
    assert Payment.objects.get().subscription_applied_at is None


def test_a_booking_that_others_changed_is_for_a_person(buyer: User) -> None:
    booking = BookingFactory.create(order__user=buyer, order__amount="990")
    _tell("p", "paid", merchant_uid=booking.order.merchant_uid)
    Booking.objects.update(status="CANCELED")

    assert _tell("p", "refunded", event_id="back") == (200, "failed_final")

    assert state_of("back") == ("FAILED_FINAL", "ORDER_CLOSED", "OPEN")
    assert Grant.objects.get().revoked_at is None


def _topped_up(buyer: User) -> Wallet:
    order = TopupFactory.create(user=buyer, amount="990")
    assert _tell("p", "paid", merchant_uid=order.merchant_uid) == (200, "processed")
    return Wallet.objects.get()


def _entries() -> list[tuple[str, int]]:
    rows = WalletEntry.objects.order_by("pk").values_list("kind", "amount")
    return [(kind, int(amount)) for kind, amount in rows]


def test_a_refund_debits_the_topup(buyer: User) -> None:
    _topped_up(buyer)

    assert _tell("p", "refunded") == (200, "processed")

    assert Wallet.objects.get().balance == 0
    assert _entries() == [("TOPUP", 990), ("TOPUP_REVOKED", -990)]
    assert Order.objects.get().status == "REFUNDED"


@pytest.mark.parametrize("how", ["spent", "reserved"])
def test_a_wallet_that_has_too_little_is_for_a_person(buyer: User, how: str) -> None:
    wallet = _topped_up(buyer)
    held = uuid4()
    wallets.reserve(payment_id=held, wallet_id=wallet.pk, amount=wallet.balance / 2)
    if how == "spent":
        wallets.commit(held)

    assert _tell("p", "refunded", event_id="back") == (200, "failed_final")

    assert state_of("back") == ("FAILED_FINAL", "WALLET_SHORT", "OPEN")
    payment, grant = Payment.objects.get(), Grant.objects.get()
    assert (payment.status, payment.subscription_applied_at is None) == ("REFUNDED", False)
    assert grant.revoked_at is None
    assert Wallet.objects.get().balance == (990 if how == "reserved" else 495)
    assert not WalletEntry.objects.filter(kind="TOPUP_REVOKED").exists()


def test_what_a_wallet_was_short_of_is_taken_once_it_is_there(buyer: User) -> None:
    wallet = _topped_up(buyer)
    held = uuid4()
    wallets.reserve(payment_id=held, wallet_id=wallet.pk, amount=wallet.balance)
    wallets.commit(held)
    _tell("p", "refunded", event_id="back")

    review.reprocess(event_of("back"), ANNA)
    assert state_of("back") == ("FAILED_FINAL", "WALLET_SHORT", "OPEN")
    wallets.credit(wallet_id=wallet.pk, amount=Decimal(990), kind=EntryKind.MANUAL, payment_id=None)
    for _ in range(2):
        review.reprocess(event_of("back"), ANNA)

    assert state_of("back") == ("PROCESSED", None, "RESOLVED")
    assert Wallet.objects.get().balance == 0
    assert _entries()[-1] == ("TOPUP_REVOKED", -990)
    assert Grant.objects.get().revoked_at is not None
    assert AuditEntry.objects.get(action="payment_revoked").actor == "staff:anna"


def test_a_refund_that_failed_while_the_wallet_was_short_can_be_settled(buyer: User) -> None:
    wallet = _topped_up(buyer)
    wallets.reserve(payment_id=uuid4(), wallet_id=wallet.pk, amount=Decimal(900))
    _tell("p", "refunded", refund_id="r", event_id="back")
    assert state_of("back")[1] == "WALLET_SHORT"

    _tell("p", "refund_failed", refund_id="r", event_id="f")

    # The money stayed and so did the top-up: a person can say so.
    assert state_of("f") == ("PROCESSED", "REINSTATE_DUE", "OPEN")
    review.reinstate(event_of("f"), ANNA, "bounced")
    assert Payment.objects.get().status == "SUCCEEDED"
    assert Wallet.objects.get().balance == 990
    assert not WebhookEvent.objects.filter(review="OPEN").exists()


def test_of_a_payment_that_waits_for_its_user_nothing_is_given_after_a_refund(
    monthly: Plan,
) -> None:
    _tell("p", "paid", email="late@example.com")
    _tell("p", "refunded")

    User.objects.create_user("late@example.com")

    assert not Grant.objects.exists()
    assert not Subscription.objects.exists()


def test_a_failed_refund_after_a_revoke_opens_reinstate(three: list[Grant]) -> None:
    _days_pass(10)
    first = _grant("a")
    _tell("a", "refunded", refund_id="r")

    assert _tell("a", "refund_failed", refund_id="r", event_id="f") == (200, "processed")

    assert state_of("f") == ("PROCESSED", "REINSTATE_DUE", "OPEN")
    # Until a person says so, nothing is given again.
    assert _grant("a").revoked_at is not None
    assert Payment.objects.get(external_payment_id="a").status == "REFUNDED"
    end = Subscription.objects.get().current_period_end
    review.reinstate(event_of("f"), ANNA, "the refund bounced")

    again = _grant("a")
    assert (again.pk, again.revoked_at, again.revoked_because) == (first.pk, None, None)
    # Exactly what was taken, behind all that the customer has now.
    assert (again.starts_at, _length(again)) == (end, _length(first) - 10 * DAY)
    assert Subscription.objects.get().current_period_end == again.ends_at
    assert state_of("f")[2] == "RESOLVED"
    payment = Payment.objects.get(external_payment_id="a")
    assert payment.status == "SUCCEEDED"
    assert payment.amount_refunded == 0
    assert payment.subscription_applied_at == _now()
    entry = AuditEntry.objects.get(action="payment_reinstated")
    assert (entry.actor, entry.reason) == ("staff:anna", "the refund bounced")


def test_reinstating_the_only_grant_at_once_gives_it_back_as_it_was(
    buyer: User, monthly: Plan
) -> None:
    _tell("p", "paid")
    before = (Grant.objects.get().starts_at, Grant.objects.get().ends_at)
    _days_pass(10)
    _tell("p", "refunded", refund_id="r")
    _tell("p", "refund_failed", refund_id="r", event_id="f")
    review.reinstate(event_of("f"), ANNA, "bounced")

    grant = Grant.objects.get()
    assert (grant.starts_at, grant.ends_at) == tuple(at and at - 10 * DAY for at in before)
    assert Subscription.objects.get().status == "ACTIVE"


@pytest.mark.parametrize("amount", ["990", "990.00"])
def test_a_failed_refund_may_tell_its_amount(buyer: User, monthly: Plan, amount: str) -> None:
    _tell("p", "paid")
    _tell("p", "refunded", refund_id="r")

    _tell("p", "refund_failed", refund_id="r", amount=amount, event_id="f")

    assert state_of("f") == ("PROCESSED", "REINSTATE_DUE", "OPEN")
    assert Payment.objects.get().amount_refunded == 0


def test_reinstating_twice_reinstates_once(three: list[Grant]) -> None:
    _tell("a", "refunded", refund_id="r")
    _tell("a", "refund_failed", refund_id="r", event_id="f")
    seen = event_of("f")

    outcomes = [review.reinstate(seen, ANNA, "bounced").result for _ in range(2)]

    assert outcomes == ["processed", "duplicate"]
    assert AuditEntry.objects.filter(action="payment_reinstated").count() == 1
    total = sum((_length(grant) for grant in three), timedelta())
    assert Subscription.objects.get().current_period_end == _now() + total


def test_reinstating_confirms_the_booking_and_credits_the_wallet_again(buyer: User) -> None:
    booking = BookingFactory.create(order__user=buyer, order__amount="990")
    _tell("q", "paid", merchant_uid=booking.order.merchant_uid)
    _topped_up(buyer)
    for name in ("p", "q"):
        _tell(name, "refunded", refund_id=name)
        _tell(name, "refund_failed", refund_id=name, event_id=f"f-{name}")
        review.reinstate(event_of(f"f-{name}"), ANNA, "bounced")

    assert set(Order.objects.values_list("status", flat=True)) == {"PAID"}
    assert Booking.objects.get().status == "CONFIRMED"
    assert Wallet.objects.get().balance == 990
    assert _entries()[-1] == ("TOPUP_REINSTATED", 990)


def test_an_order_that_another_payment_paid_since_cannot_be_reinstated(buyer: User) -> None:
    booking = BookingFactory.create(order__user=buyer, order__amount="990")
    told = {"merchant_uid": booking.order.merchant_uid}
    _tell("p", "paid", **told)
    _tell("p", "refunded", refund_id="r", **told)
    _tell("q", "paid", event_id="q", **told)
    review.apply_anyway(event_of("q"), ANNA, "paid again")
    _tell("p", "refund_failed", refund_id="r", event_id="f", **told)

    review.reinstate(event_of("f"), ANNA, "bounced")

    assert state_of("f") == ("FAILED_FINAL", "ORDER_ALREADY_PAID", "OPEN")
    live = Grant.objects.get(revoked_at__isnull=True)
    assert live.payment.external_payment_id == "q"
    assert Booking.objects.get().status == "CONFIRMED"


def test_a_reason_is_required_and_only_what_is_open_can_be_decided(three: list[Grant]) -> None:
    _tell("a", "refunded", refund_id="r", event_id="back")
    _tell("a", "refund_failed", refund_id="r", event_id="f")

    for event, reason in ((event_of("f"), " "), (event_of("back"), "why not")):
        with pytest.raises(review.CannotDecide):
            review.reinstate(event, ANNA, reason)

    assert _grant("a").revoked_at is not None
    assert not AuditEntry.objects.filter(actor="staff:anna").exists()
