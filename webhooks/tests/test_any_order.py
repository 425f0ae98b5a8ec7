"""Every order in which the events of one payment can arrive, with repeats mixed in, ends where
the order in which they happened ends. Through the door, on PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import permutations
from typing import Any

import pytest
from django.db import transaction

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
    "a refund that failed, a dispute that was lost": [
        "paid",
        "partially_refunded a 200",
        "refund_failed a",
        "disputed",
        "dispute_lost",
    ],
    "canceled and paid again": ["paid", "canceled", "failed", "paid", "partially_refunded a 200"],
    "canceled after it was paid": ["pending", "failed", "paid", "canceled"],
    "refunded after a dispute": ["pending", "paid", "disputed", "refunded r", "canceled"],
    "a dispute that was won": ["failed", "paid", "disputed", "dispute_won"],
    "a full refund that failed": ["paid", "refunded r", "refund_failed r", "paid"],
    "no times at all": [
        "pending*",
        "failed*",
        "canceled*",
        "paid*",
        "partially_refunded a 200*",
        "refunded*",
    ],
    "no times, and the money stays": ["pending*", "failed*", "paid*", "disputed*", "dispute_won*"],
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


Look = Callable[[], Any]


def _ends(payloads: list[dict[str, Any]], look: Look) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Every order of arrival and what it ends in. Orders that begin alike share their beginning:
    each step is taken back once everything that can follow it was seen."""
    yield from _onwards((), payloads, look)


def _onwards(
    so_far: tuple[int, ...], payloads: list[dict[str, Any]], look: Look
) -> Iterator[tuple[tuple[int, ...], Any]]:
    if len(so_far) == len(payloads):
        yield so_far, look()
    for number, payload in enumerate(payloads):
        if number in so_far:
            continue
        with _taken_back():
            assert deliver(payload).status_code == 200
            # One of those before comes again: another one at each step, now and then itself.
            again = (*so_far, number)[len(so_far) // 2]
            assert deliver(payloads[again]).json()["status"] in ("duplicate", "unlinked")
            yield from _onwards((*so_far, number), payloads, look)


@contextmanager
def _taken_back() -> Iterator[None]:
    savepoint = transaction.savepoint()
    yield
    transaction.savepoint_rollback(savepoint)


def _money() -> tuple[Any, ...]:
    payment = Payment.objects.get()
    live = Grant.objects.filter(revoked_at__isnull=True)
    assert live.count() == (payment.subscription_applied_at is not None)
    refunds = Refund.objects.order_by("external_refund_id")
    return (
        payment.status,
        payment.amount,
        payment.amount_refunded,
        payment.paid_at if payment.facts.filter(kind="PAID", occurred_at=None).count() == 0 else 0,
        live.exists(),
        list(refunds.values_list("external_refund_id", "amount", "status")),
    )


def _customer() -> tuple[Any, ...]:
    """What the customer has: nothing of it may differ where the money is the same."""
    bookings = Booking.objects.filter(status="CONFIRMED").count()
    topped_up = sum(Wallet.objects.values_list("balance", flat=True))
    ends = [
        end if status == "ACTIVE" else None
        for status, end in Subscription.objects.values_list("status", "current_period_end")
    ]
    return bookings, topped_up, [end for end in ends if end]


def _assert_all_alike(told: list[str], uid: str, look: Look) -> int:
    ends = _ends(_payloads(told, uid), look)
    in_order, expected = next(ends)
    assert in_order == tuple(range(len(told)))
    others = list(ends)
    differing = {order: end for order, end in others if end != expected}
    assert not differing, f"in order {expected}; {len(differing)} differ: {_shown(differing, told)}"
    return 1 + len(others)


def _shown(differing: dict[tuple[int, ...], Any], told: list[str]) -> str:
    order, end = next(iter(differing.items()))
    return f"{[told[number] for number in order]} ends in {end}"


@pytest.mark.parametrize("name", SETS)
def test_the_money_and_what_it_bought_end_alike(name: str, buyer: User) -> None:
    booking = BookingFactory.create(order__user=buyer)
    told = SETS[name]

    seen = _assert_all_alike(
        told, booking.order.merchant_uid, lambda: (*_money(), *_customer())
    )

    assert seen == len(list(permutations(told)))


@pytest.mark.parametrize("make", [OrderFactory, TopupFactory], ids=["subscription", "top-up"])
@pytest.mark.parametrize("name", ["a full refund that failed", "canceled after it was paid"])
def test_so_does_everything_else_that_can_be_bought(
    make: type[OrderFactory], name: str, buyer: User
) -> None:
    order = make.create(user=buyer)

    _assert_all_alike(SETS[name], order.merchant_uid, lambda: (*_money(), *_customer()))


def test_so_does_what_was_bought_without_an_order(buyer: User, monthly: Plan) -> None:
    told = ["pending", "paid", "disputed", "refunded r"]
    payloads = [
        {**payload, "email": "buyer@example.com", "amount": "990"}
        for payload in _payloads(told, "")
    ]
    for payload in payloads:
        del payload["merchant_uid"]

    ends = {end for _, end in _ends(payloads, lambda: repr((*_money(), *_customer())))}

    assert len(ends) == 1


@pytest.mark.parametrize("name", SETS)
def test_the_order_and_its_booking_end_alike(name: str, buyer: User) -> None:
    booking = BookingFactory.create(order__user=buyer)

    _assert_all_alike(
        SETS[name],
        booking.order.merchant_uid,
        lambda: (Order.objects.get().status, Booking.objects.get().status),
    )


@pytest.mark.parametrize("name", SETS)
def test_somebody_is_asked_in_every_order_or_in_none(name: str, buyer: User) -> None:
    """About what a person must decide: which event asks may differ, that one asks may not."""
    booking = BookingFactory.create(order__user=buyer)
    asks = {"PARTIAL_REFUND", "DISPUTED", "REINSTATE_DUE", "CANCEL_UNCONFIRMED"}

    def look() -> set[str]:
        queue = WebhookEvent.objects.filter(review="OPEN", error_code__in=asks)
        return set(queue.values_list("error_code", flat=True))

    _assert_all_alike(SETS[name], booking.order.merchant_uid, look)
