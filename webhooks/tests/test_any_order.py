"""Every order in which the events of one payment can arrive, with repeats mixed in, ends where
the order in which they happened ends. Through the door, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import factorial
from typing import Any

import pytest
from django.db import transaction

from billing.fold import fold
from billing.models import Booking, Grant, Order, Payment, Refund, Wallet
from subscriptions.models import Plan, Subscription, User
from tests.factories import BookingFactory, OrderFactory, TopupFactory
from tests.sending import deliver, paid
from webhooks.models import WebhookEvent

pytestmark = pytest.mark.django_db

# What happened, in the order in which it did. A trailing "*": the provider tells no time.
SETS = {
    "tries, then a refund in two parts": [
        "pending",
        "failed",
        "paid",
        "partially_refunded a 200",
        "partially_refunded b 300",
        "dispute_won",
    ],
    "no times at all": [
        "failed*",
        "canceled*",
        "paid*",
        "partially_refunded a 200*",
        "refunded*",
    ],
    "a refund that failed, a dispute that was lost": [
        "paid",
        "partially_refunded a 200",
        "refund_failed a",
        "disputed",
        "dispute_lost",
    ],
    "canceled and paid again": ["paid", "canceled", "failed", "paid", "partially_refunded a 200"],
    "canceled after it was paid": ["pending", "failed", "paid", "canceled"],
    "refunded after a dispute": ["pending", "paid", "disputed", "refunded r"],
    "a dispute that was won": ["failed", "paid", "disputed", "dispute_won"],
    "a dispute that was lost and won": ["paid", "disputed", "dispute_lost", "dispute_won"],
    "a full refund that failed": ["paid", "refunded r", "refund_failed r", "paid"],
    "no times, and the money stays": ["failed*", "paid*", "disputed*", "dispute_won*"],
    "no times, and a cancel nobody can place": ["failed*", "paid*", "canceled*"],
}


def _payloads(told: list[str], uid: str) -> list[dict[str, Any]]:
    return [_payload(line, number, uid) for number, line in enumerate(told)]


def _payload(line: str, number: int, uid: str) -> dict[str, Any]:
    status, *rest = line.rstrip("*").split()
    refund_id, amount = (*rest, None, None)[:2]
    return paid(
        event_id=f"e{number}",
        external_payment_id="p",
        merchant_uid=uid,
        email=None,
        status=status,
        refund_id=refund_id,
        amount=amount or "500",
        occurred_at=None if line.endswith("*") else f"2026-01-01T1{number}:00:00Z",
    )


Arrival = tuple[int, ...]
Ends = list[tuple[Arrival, dict[str, Any]]]


def _ends(payloads: list[dict[str, Any]], so_far: Arrival = ()) -> Iterator[tuple[Arrival, Any]]:
    """Every order of arrival and what it ends in. Orders that begin alike share their beginning:
    each step is taken back once everything that can follow it was seen."""
    if len(so_far) == len(payloads):
        yield so_far, {"money": _money(), "order": _order(), "unasked": _unasked()}
    for number, payload in enumerate(payloads):
        if number in so_far:
            continue
        with _taken_back():
            assert deliver(payload).status_code == 200
            if len(so_far) in (1, 2):
                # One of those before comes again, or itself does.
                again = payloads[so_far[number % len(so_far)] if number % 3 else number]
                assert deliver(again).json()["status"] == "duplicate"
            yield from _ends(payloads, (*so_far, number))


@contextmanager
def _taken_back() -> Iterator[None]:
    savepoint = transaction.savepoint()
    yield
    transaction.savepoint_rollback(savepoint)


def _money() -> tuple[Any, ...]:
    """Of the payment, and what the customer has for it."""
    payment = Payment.objects.get()
    live = Grant.objects.filter(revoked_at__isnull=True)
    assert live.count() == (payment.subscription_applied_at is not None)
    refunds = Refund.objects.order_by("external_refund_id")
    subscriptions = Subscription.objects.filter(status="ACTIVE")
    return (
        payment.status,
        payment.amount,
        payment.amount_refunded,
        live.exists(),
        list(refunds.values_list("external_refund_id", "amount", "status")),
        Booking.objects.filter(status="CONFIRMED").count(),
        sum(Wallet.objects.values_list("balance", flat=True)),
        list(subscriptions.values_list("current_period_end", flat=True)),
    )


def _order() -> tuple[Any, ...]:
    statuses = [*Order.objects.values_list("status", flat=True)]
    return (*statuses, *Booking.objects.values_list("status", flat=True))


def _unasked() -> set[str]:
    """What a person must decide, as the payment stands now, and no event asks about."""
    payment = Payment.objects.get()
    folded, applied = fold(payment.facts.all()), payment.subscription_applied_at is not None
    due = {
        "PARTIAL_REFUND": applied and folded.amount_refunded > 0,
        "DISPUTED": applied and folded.disputed,
        "REINSTATE_DUE": folded.reinstatable,
        "CANCEL_UNCONFIRMED": folded.cancel_unconfirmed,
    }
    asked = WebhookEvent.objects.filter(review="OPEN").values_list("error_code", flat=True)
    return {code for code, so in due.items() if so} - set(asked)


_seen: dict[str, Ends] = {}


def _all_ends(name: str, buyer: User) -> Ends:
    """Walked once for the tests that look at it."""
    if name not in _seen:
        booking = BookingFactory.create(order__user=buyer)
        _seen[name] = list(_ends(_payloads(SETS[name], booking.order.merchant_uid)))
    return _seen[name]


def _assert_alike(ends: Ends, what: str, told: list[str]) -> None:
    assert len(ends) == factorial(len(told))
    in_order, expected = ends[0]
    assert in_order == tuple(range(len(told)))
    other = [(order, end[what]) for order, end in ends if end[what] != expected[what]]
    if other:
        order, end = other[0]
        arrived = [told[number] for number in order]
        pytest.fail(
            f"in order: {expected[what]}; in {len(other)} others it is not: {arrived} ends in {end}"
        )


@pytest.mark.parametrize("name", SETS)
def test_the_money_and_what_it_bought_end_alike(name: str, buyer: User) -> None:
    _assert_alike(_all_ends(name, buyer), "money", SETS[name])


@pytest.mark.parametrize("name", SETS)
def test_the_order_and_its_booking_end_alike(name: str, buyer: User) -> None:
    _assert_alike(_all_ends(name, buyer), "order", SETS[name])


@pytest.mark.parametrize("name", SETS)
def test_a_person_is_asked_whatever_the_order(name: str, buyer: User) -> None:
    unasked = {order: end["unasked"] for order, end in _all_ends(name, buyer) if end["unasked"]}

    assert not unasked


@pytest.mark.parametrize("make", [OrderFactory, TopupFactory], ids=["subscription", "top-up"])
@pytest.mark.parametrize("name", ["a full refund that failed", "canceled after it was paid"])
def test_so_does_everything_else_that_can_be_bought(
    make: type[OrderFactory], name: str, buyer: User
) -> None:
    order = make.create(user=buyer)

    ends = list(_ends(_payloads(SETS[name], order.merchant_uid)))

    _assert_alike(ends, "money", SETS[name])


def test_so_does_what_was_bought_without_an_order(buyer: User, monthly: Plan) -> None:
    told = ["pending", "paid", "disputed", "refunded r"]
    by_email = {"merchant_uid": "", "email": "buyer@example.com", "amount": "990"}
    payloads = [{**payload, **by_email} for payload in _payloads(told, "")]

    _assert_alike(list(_ends(payloads)), "money", told)
