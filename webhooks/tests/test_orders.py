"""A payment that names an order gives what the order buys, once, to whoever ordered it."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from billing.models import Booking, Grant, Order, Payment, Wallet, WalletEntry
from subscriptions.models import Plan, Subscription, User
from tests.factories import (
    BookingFactory,
    OrderFactory,
    PlanFactory,
    PlanPriceFactory,
    TopupFactory,
    UserFactory,
)
from tests.looking import state_of
from tests.people import ANNA
from tests.refusing import refused
from tests.sending import deliver, paid, result
from webhooks import linking, review
from webhooks.models import WebhookEvent

pytestmark = pytest.mark.django_db


def _pays(order: Order, **fields: Any) -> dict[str, Any]:
    """No e-mail: only the order says whose it is."""
    told = {"merchant_uid": order.merchant_uid, "email": None, "amount": "500"}
    return paid(**{**told, "currency": order.currency, **fields})


def test_an_order_of_a_subscription_extends_it(buyer: User) -> None:
    order = OrderFactory.create(user=buyer)

    assert result(deliver(_pays(order))) == (200, "processed")

    order.refresh_from_db()
    payment, grant = Payment.objects.get(), Grant.objects.get()
    assert (order.status, order.paid_at) == ("PAID", payment.subscription_applied_at)
    assert (payment.order, payment.user, payment.plan) == (order, buyer, order.plan)
    assert (grant.kind, grant.order, grant.plan) == ("SUBSCRIPTION", order, order.plan)
    subscription = Subscription.objects.get(user=buyer)
    assert (subscription.status, subscription.current_period_end) == ("ACTIVE", grant.ends_at)


def test_an_order_of_a_booking_confirms_it(buyer: User) -> None:
    booking = BookingFactory.create(order__user=buyer)

    assert result(deliver(_pays(booking.order))) == (200, "processed")

    booking.refresh_from_db()
    payment, grant = Payment.objects.get(), Grant.objects.get()
    assert (booking.status, booking.paid_at) == ("CONFIRMED", payment.subscription_applied_at)
    assert (grant.kind, grant.booking, grant.order) == ("BOOKING", booking, booking.order)
    assert Order.objects.get().status == "PAID"
    assert not Subscription.objects.exists()


def test_an_order_of_a_topup_credits_the_wallet(buyer: User) -> None:
    order = TopupFactory.create(user=buyer)

    assert result(deliver(_pays(order))) == (200, "processed")

    wallet, entry, grant = Wallet.objects.get(), WalletEntry.objects.get(), Grant.objects.get()
    assert wallet.balance == entry.amount == grant.amount == 500
    assert wallet.reserved == 0
    assert (entry.kind, entry.payment_id) == ("TOPUP", Payment.objects.get().pk)
    assert (grant.kind, grant.wallet) == ("WALLET_TOPUP", wallet)
    assert Order.objects.get().status == "PAID"


def test_the_order_says_whose_it_is_before_the_email_does(buyer: User, monthly: Plan) -> None:
    """Also when the e-mail's owner and the default plan's price would fit."""
    owner = UserFactory.create(email="owner@example.com")
    order = OrderFactory.create(user=owner, amount="990")

    deliver(_pays(order, email="buyer@example.com", amount="990"))

    assert Payment.objects.get().user == owner
    assert Grant.objects.get().plan == order.plan != monthly
    assert Subscription.objects.get().user == owner


def test_the_order_says_which_plan_before_the_payment_does(buyer: User, monthly: Plan) -> None:
    order = OrderFactory.create(user=buyer)

    assert result(deliver(_pays(order, plan_id="monthly"))) == (200, "processed")

    assert Grant.objects.get().plan == order.plan


def test_a_plan_that_was_withdrawn_since_is_still_given_to_whoever_ordered_it(buyer: User) -> None:
    order = OrderFactory.create(user=buyer, plan__is_active=False)

    assert result(deliver(_pays(order))) == (200, "processed")
    assert Grant.objects.get().plan == order.plan


@pytest.mark.parametrize(
    ("ordered", "told", "passes"),
    [
        (("500.00", "RUB"), ("500.01", "RUB"), True),
        (("500.00", "RUB"), ("499.99", "RUB"), True),
        (("500.00", "RUB"), ("500.02", "RUB"), False),
        (("500.00", "RUB"), ("499.98", "RUB"), False),
        (("500.00", "RUB"), ("500.00", "USD"), False),
        (("50000", "KRW"), ("50000", "KRW"), True),
        (("50000", "KRW"), ("50000.00", "KRW"), True),
        (("50000", "KRW"), ("50001", "KRW"), False),
        (("50000", "KRW"), ("49999", "KRW"), False),
        (("5.000", "KWD"), ("5.010", "KWD"), True),
        (("5.000", "KWD"), ("5.011", "KWD"), False),
    ],
)
def test_the_sum_is_that_of_the_order(
    buyer: User, ordered: tuple[str, str], told: tuple[str, str], passes: bool
) -> None:
    (ordered_amount, ordered_currency), (amount, currency) = ordered, told
    booking = BookingFactory.create(
        order__user=buyer, order__amount=ordered_amount, order__currency=ordered_currency
    )

    answer = deliver(_pays(booking.order, event_id="e", amount=amount, currency=currency))

    booking.refresh_from_db()
    payment = Payment.objects.get()
    assert payment.status == "SUCCEEDED"
    if passes:
        assert result(answer) == (200, "processed")
        assert booking.status == "CONFIRMED"
    else:
        assert result(answer) == (200, "failed_final")
        assert state_of("e") == ("FAILED_FINAL", "AMOUNT_MISMATCH", "OPEN")
        assert (booking.status, Order.objects.get().status) == ("PENDING", "PENDING")
        assert (payment.subscription_applied_at, payment.order) == (None, booking.order)
        assert not Grant.objects.exists()


def test_a_payment_without_an_amount_is_no_payment_of_an_order(buyer: User) -> None:
    booking = BookingFactory.create(order__user=buyer)

    deliver(_pays(booking.order, event_id="e", amount=None))

    assert state_of("e") == ("FAILED_FINAL", "AMOUNT_MISMATCH", "OPEN")


def test_a_person_can_let_another_sum_pass(buyer: User) -> None:
    order = TopupFactory.create(user=buyer)
    deliver(_pays(order, event_id="e", amount="300"))

    event = WebhookEvent.objects.get()
    review.apply_anyway(event, ANNA, "the terminal was wrong")

    assert state_of("e") == ("PROCESSED", None, "RESOLVED")
    # What came in is what goes into the wallet.
    assert Wallet.objects.get().balance == 300
    assert Order.objects.get().status == "PAID"


def test_other_money_never_goes_into_a_wallet(buyer: User) -> None:
    order = TopupFactory.create(user=buyer)
    deliver(_pays(order, event_id="e", currency="USD"))

    review.apply_anyway(WebhookEvent.objects.get(), ANNA, "by mistake")

    assert state_of("e") == ("FAILED_FINAL", "AMOUNT_MISMATCH", "OPEN")
    assert Wallet.objects.get().balance == 0


@pytest.mark.parametrize("make", [OrderFactory, TopupFactory, None])
def test_one_order_paid_twice_is_applied_once(buyer: User, make: Any) -> None:
    order = make.create(user=buyer) if make else BookingFactory.create(order__user=buyer).order
    deliver(_pays(order, event_id="first"))
    before = _customer()

    answer = deliver(_pays(order, event_id="second"))

    assert result(answer) == (200, "failed_final")
    assert state_of("second") == ("FAILED_FINAL", "ORDER_ALREADY_PAID", "OPEN")
    second = Payment.objects.get(subscription_applied_at__isnull=True)
    assert (second.status, second.order, second.user) == ("SUCCEEDED", order, buyer)
    assert _customer() == before
    assert Grant.objects.count() == 1


def _customer() -> list[Any]:
    return [
        *Subscription.objects.values_list("status", "current_period_end"),
        *Booking.objects.values_list("status", "paid_at"),
        *Wallet.objects.values_list("balance", flat=True),
        *Order.objects.values_list("status", "paid_at"),
    ]


def test_not_even_a_person_can_make_one_order_be_paid_twice(buyer: User) -> None:
    order = OrderFactory.create(user=buyer)
    deliver(_pays(order, event_id="first"))
    deliver(_pays(order, event_id="second"))
    second = WebhookEvent.objects.get(external_event_id="second")

    with pytest.raises(review.CannotDecide):
        review.apply_anyway(second, ANNA, "please")
    review.reprocess(second, ANNA)

    assert state_of("second") == ("FAILED_FINAL", "ORDER_ALREADY_PAID", "OPEN")
    assert Grant.objects.count() == 1


def test_the_database_itself_refuses_a_second_live_grant_of_an_order(buyer: User) -> None:
    booking = BookingFactory.create(order__user=buyer)
    deliver(_pays(booking.order))
    deliver(_pays(booking.order))
    unapplied = Payment.objects.get(subscription_applied_at__isnull=True)
    fields = {"payment": unapplied, "kind": "BOOKING", "booking": booking, "order": booking.order}

    with refused(by="grant_one_live_per_order"):
        Grant.objects.create(**fields)
    Grant.objects.update(revoked_at=booking.created_at)
    Grant.objects.create(**fields)


def test_the_second_payment_takes_over_once_the_first_was_refunded(buyer: User) -> None:
    booking = BookingFactory.create(order__user=buyer)
    first = _pays(booking.order, event_id="first")
    deliver(first)
    deliver(_pays(booking.order, event_id="second"))
    deliver({**first, "event_id": "back", "status": "refunded"})
    second = WebhookEvent.objects.get(external_event_id="second")

    review.reprocess(second, ANNA)
    assert state_of("second") == ("FAILED_FINAL", "ORDER_CLOSED", "OPEN")
    second.refresh_from_db()
    review.apply_anyway(second, ANNA, "the other one was refunded")

    assert state_of("second") == ("PROCESSED", None, "RESOLVED")
    booking.refresh_from_db()
    assert (booking.status, Order.objects.get().status) == ("CONFIRMED", "PAID")
    live = Grant.objects.get(revoked_at__isnull=True)
    assert live.payment.subscription_applied_at is not None
    assert Grant.objects.count() == 2


@pytest.mark.parametrize("status", ["CANCELED", "REFUNDED"])
def test_a_closed_order_is_for_a_person(buyer: User, status: str) -> None:
    booking = BookingFactory.create(order__user=buyer, order__status=status)

    assert result(deliver(_pays(booking.order, event_id="e"))) == (200, "failed_final")

    assert state_of("e") == ("FAILED_FINAL", "ORDER_CLOSED", "OPEN")
    booking.refresh_from_db()
    assert booking.status == "PENDING"
    review.apply_anyway(WebhookEvent.objects.get(), ANNA, "still free")
    booking.refresh_from_db()
    assert (booking.status, Order.objects.get().status) == ("CONFIRMED", "PAID")


def test_a_booking_that_does_not_wait_for_a_payment_is_for_a_person(buyer: User) -> None:
    booking = BookingFactory.create(order__user=buyer, status="CANCELED")

    deliver(_pays(booking.order, event_id="e"))

    assert state_of("e") == ("FAILED_FINAL", "ORDER_CLOSED", "OPEN")
    assert Order.objects.get().status == "PENDING"


@pytest.mark.parametrize("email", [None, "nobody@example.com"])
def test_an_order_that_appears_after_its_payment_gets_it(buyer: User, email: str | None) -> None:
    deliver(paid(event_id="e", merchant_uid="late", email=email, amount="500"))
    code = "USER_MISSING" if email else "UNLINKED_PAYMENT"
    assert state_of("e") == ("FAILED_RETRYABLE", code, None)
    booking = BookingFactory.create(order__user=buyer, order__merchant_uid="late")

    assert linking.link_payments_of_order(booking.order) == 1
    assert linking.link_payments_of_order(booking.order) == 0

    assert state_of("e") == ("PROCESSED", None, None)
    booking.refresh_from_db()
    assert booking.status == "CONFIRMED"
    assert Payment.objects.get().user == buyer


def test_an_order_resolves_the_mismatch_that_its_absence_made(buyer: User, monthly: Plan) -> None:
    """By its e-mail and the default plan the sum looked wrong."""
    owner = UserFactory.create()
    deliver(paid(event_id="e", merchant_uid="late", amount="500"))
    assert state_of("e") == ("FAILED_FINAL", "AMOUNT_MISMATCH", "OPEN")
    order = OrderFactory.create(user=owner, merchant_uid="late")

    assert linking.link_payments_of_order(order) == 1

    assert state_of("e") == ("PROCESSED", None, "RESOLVED")
    payment, grant = Payment.objects.get(), Grant.objects.get()
    assert (payment.user, payment.order, grant.plan) == (owner, order, order.plan)
    assert not Subscription.objects.filter(user=buyer).exists()


def test_an_order_of_another_sum_leaves_the_mismatch_for_a_person(
    buyer: User, monthly: Plan
) -> None:
    deliver(paid(event_id="e", merchant_uid="late", amount="500"))
    order = OrderFactory.create(user=buyer, merchant_uid="late", amount="600")

    assert linking.link_payments_of_order(order) == 0

    assert state_of("e") == ("FAILED_FINAL", "AMOUNT_MISMATCH", "OPEN")
    message = WebhookEvent.objects.get().error_message or ""
    assert "order late cost 600" in message


def test_an_order_leaves_alone_what_a_person_dismissed(buyer: User, monthly: Plan) -> None:
    deliver(paid(event_id="e", merchant_uid="late", amount="500"))
    review.dismiss(WebhookEvent.objects.get(), ANNA, "fraud")
    order = OrderFactory.create(user=buyer, merchant_uid="late")

    assert linking.link_payments_of_order(order) == 0
    assert linking.sweep_linkable_payments() == 0

    assert state_of("e") == ("FAILED_FINAL", "AMOUNT_MISMATCH", "DISMISSED")
    assert not Grant.objects.exists()


def test_of_two_payments_that_waited_for_one_order_one_is_applied(buyer: User) -> None:
    for event_id in ("one", "two"):
        deliver(paid(event_id=event_id, merchant_uid="late", email=None, amount="500"))
    order = TopupFactory.create(user=buyer, merchant_uid="late")

    assert linking.link_payments_of_order(order) == 1

    assert {state_of("one")[1], state_of("two")[1]} == {None, "ORDER_ALREADY_PAID"}
    assert Wallet.objects.get().balance == Decimal(500)


def test_the_sweep_finds_orders_that_nobody_announced(buyer: User) -> None:
    deliver(paid(event_id="e", merchant_uid="late", email=None, amount="500"))
    OrderFactory.create(user=buyer, merchant_uid="late")

    assert linking.sweep_linkable_payments() == 1
    assert linking.sweep_linkable_payments() == 0
    assert state_of("e") == ("PROCESSED", None, None)


def test_another_event_that_brings_the_order_finishes_what_was_parked(buyer: User) -> None:
    order = OrderFactory.create(user=buyer)
    deliver(_pays(order, event_id="e", external_payment_id="p", merchant_uid=None))
    assert state_of("e") == ("FAILED_RETRYABLE", "UNLINKED_PAYMENT", None)

    assert result(deliver(_pays(order, event_id="f", external_payment_id="p"))) == (
        200,
        "processed",
    )

    assert state_of("e") == ("PROCESSED", None, None)
    assert Grant.objects.get().order == order


def test_successes_that_name_different_orders_go_to_review(buyer: User) -> None:
    one, other = OrderFactory.create(user=buyer), OrderFactory.create(user=buyer)
    deliver(_pays(one, event_id="e", external_payment_id="p"))

    deliver(_pays(other, event_id="f", external_payment_id="p"))

    assert state_of("f") == ("FAILED_FINAL", "FACTS_DISAGREE", "OPEN")
    assert Grant.objects.get().order == one
    other.refresh_from_db()
    assert other.status == "PENDING"


def test_an_order_that_does_not_exist_leaves_the_email_to_say_whose_it_is(
    buyer: User, monthly: Plan
) -> None:
    assert result(deliver(paid(merchant_uid="no such order"))) == (200, "processed")

    assert Grant.objects.get().order is None
    assert Payment.objects.get().user == buyer


def test_failed_before_paid_and_after_it(buyer: User) -> None:
    booking = BookingFactory.create(order__user=buyer)
    success = _pays(booking.order, event_id="paid")
    early = {**success, "event_id": "early", "status": "failed"}
    late = {**success, "event_id": "late", "status": "failed"}

    assert [result(deliver(payload))[1] for payload in (early, success, late)] == [
        "ignored",
        "processed",
        "ignored",
    ]

    assert state_of("early") == ("IGNORED", "NON_SUCCESS_STATUS", None)
    assert state_of("late") == ("IGNORED", "OUT_OF_ORDER", None)
    booking.refresh_from_db()
    assert (booking.status, Payment.objects.get().status) == ("CONFIRMED", "SUCCEEDED")


def test_the_price_of_the_plan_does_not_matter_to_an_order(buyer: User) -> None:
    plan = PlanFactory.create()
    PlanPriceFactory.create(plan=plan, amount="990")
    order = OrderFactory.create(user=buyer, plan=plan, amount="500")

    assert result(deliver(_pays(order))) == (200, "processed")
