from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest

from billing.models import Booking, Order, Wallet
from billing.money import BadMoney
from billing.ordering import BadOrder, NoSuchPlan, OtherOrder, create_order
from billing.wallets import NoSuchUser, NoSuchWallet, open_wallet
from subscriptions.models import Plan, User
from tests.factories import UserFactory
from tests.faults.threads import at_once

pytestmark = pytest.mark.django_db


def _wanted(user: User, **fields: Any) -> dict[str, Any]:
    return {
        "merchant_uid": "order-1",
        "buys": "SUBSCRIPTION",
        "user_id": user.pk,
        "amount": "990.00",
        "currency": "rub",
        "plan_code": "monthly",
        **fields,
    }


def _booking(user: User, **fields: Any) -> dict[str, Any]:
    return _wanted(user, buys="BOOKING", plan_code=None, booking_reference="room 7", **fields)


def _topup(user: User, **fields: Any) -> dict[str, Any]:
    return _wanted(user, buys="WALLET_TOPUP", plan_code=None, **fields)


def test_a_subscription_is_ordered_by_its_plan(buyer: User, monthly: Plan) -> None:
    order, created = create_order(**_wanted(buyer))

    assert created
    assert (order.user, order.plan, order.wallet) == (buyer, monthly, None)
    assert (order.amount, order.currency, order.status) == (Decimal(990), "RUB", "PENDING")
    assert not Booking.objects.exists()


def test_a_booking_is_made_with_its_order(buyer: User) -> None:
    order, _ = create_order(**_booking(buyer))

    booking = Booking.objects.get()
    assert (booking.order, booking.reference, booking.status) == (order, "room 7", "PENDING")


def test_a_topup_opens_the_users_wallet_or_finds_it(buyer: User) -> None:
    first, _ = create_order(**_topup(buyer))
    second, _ = create_order(**_topup(buyer, merchant_uid="order-2"))

    assert first.wallet == second.wallet == Wallet.objects.get()
    assert (first.wallet.user, first.wallet.currency) == (buyer, "RUB")


@pytest.mark.parametrize("wanted", [_wanted, _booking, _topup])
def test_the_same_order_again_is_the_first_one(buyer: User, monthly: Plan, wanted: Any) -> None:
    first, _ = create_order(**wanted(buyer))

    again, created = create_order(**wanted(buyer) | {"amount": "990", "currency": "RUB"})

    assert (again, created) == (first, False)
    assert Order.objects.count() == 1


@pytest.mark.parametrize(
    "other",
    [
        {"amount": "990.01"},
        {"currency": "USD"},
        {"user_id": "another"},
        {"buys": "WALLET_TOPUP", "booking_reference": None},
        {"booking_reference": "room 8"},
        {"booking_reference": None},
    ],
)
def test_other_content_under_the_same_uid_is_refused(buyer: User, other: dict[str, Any]) -> None:
    create_order(**_booking(buyer))
    if "user_id" in other:
        other = {"user_id": UserFactory.create().pk}

    with pytest.raises(OtherOrder):
        create_order(**_booking(buyer) | other)

    assert Order.objects.get().amount == 990


def test_another_plan_under_the_same_uid_is_refused(buyer: User, monthly: Plan) -> None:
    create_order(**_wanted(buyer))
    Plan.objects.create(code="yearly", name="Yearly")

    with pytest.raises(OtherOrder):
        create_order(**_wanted(buyer, plan_code="yearly"))


def test_a_plan_that_is_withdrawn_cannot_be_ordered_but_stays_ordered(
    buyer: User, monthly: Plan
) -> None:
    order, _ = create_order(**_wanted(buyer))
    Plan.objects.update(is_active=False)

    assert create_order(**_wanted(buyer)) == (order, False)
    with pytest.raises(NoSuchPlan):
        create_order(**_wanted(buyer, merchant_uid="order-2"))


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"user_id": uuid4()}, NoSuchUser),
        ({"plan_code": "nothing"}, NoSuchPlan),
        ({"plan_code": None}, BadOrder),
        ({"booking_reference": "room 7"}, BadOrder),
        ({"wallet_id": uuid4()}, BadOrder),
        ({"buys": "WALLET_SPENDING", "plan_code": None}, BadOrder),
        ({"buys": "BOOKING"}, BadOrder),
        ({"buys": "WALLET_TOPUP", "plan_code": None, "wallet_id": uuid4()}, NoSuchWallet),
        ({"amount": "0"}, BadMoney),
        ({"amount": 9.9}, BadMoney),
        ({"amount": None}, BadMoney),
        ({"currency": "RUBL"}, BadMoney),
        ({"merchant_uid": " "}, BadOrder),
        ({"merchant_uid": "x" * 256}, BadOrder),
    ],
)
def test_what_cannot_be_ordered_is_refused(
    buyer: User, monthly: Plan, fields: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        create_order(**_wanted(buyer, **fields))

    assert not Order.objects.exists()


def test_a_wallet_must_be_the_users_own_and_of_the_currency(buyer: User) -> None:
    dollars = open_wallet(user_id=buyer.pk, currency="USD")
    others = open_wallet(user_id=UserFactory.create().pk, currency="RUB")

    with pytest.raises(BadOrder, match="currency"):
        create_order(**_topup(buyer, wallet_id=dollars.pk))
    with pytest.raises(NoSuchWallet):
        create_order(**_topup(buyer, wallet_id=others.pk))

    order, _ = create_order(**_topup(buyer, wallet_id=dollars.pk, currency="USD"))
    assert order.wallet == dollars


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("wanted", [_booking, _topup])
def test_of_many_at_once_one_makes_the_order(buyer: User, wanted: Any) -> None:
    calls = [lambda: create_order(**wanted(buyer))] * 8

    answers = at_once(*calls)

    assert sorted(created for _, created in answers) == [False] * 7 + [True]
    assert len({order.pk for order, _ in answers}) == 1
    assert Booking.objects.count() == (1 if wanted is _booking else 0)


@pytest.mark.django_db(transaction=True)
def test_of_two_different_ones_at_once_the_second_is_refused(buyer: User) -> None:
    calls = [
        lambda amount=amount: create_order(**_booking(buyer) | {"amount": amount})
        for amount in ("1", "2")
    ]

    answers = at_once(*calls, expected=OtherOrder)

    assert sum(isinstance(answer, OtherOrder) for answer in answers) == 1
    assert Order.objects.count() == Booking.objects.count() == 1
