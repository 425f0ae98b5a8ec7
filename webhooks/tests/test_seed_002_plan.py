"""The test plan of the booking platform's specification: "exactly once, whatever is repeated, lost
or out of order". Its last line, ten at once, is in tests/faults/test_races_of_orders.py."""

from __future__ import annotations

from typing import Any

import pytest

from billing.models import Booking, Grant, Order, Payment
from subscriptions.models import User
from tests.factories import BookingFactory
from tests.logs import read_logs
from tests.sending import deliver, paid, result
from webhooks.models import WebhookEvent

pytestmark = pytest.mark.django_db


@pytest.fixture
def booking(buyer: User) -> Booking:
    return BookingFactory.create(order__user=buyer, order__merchant_uid="order")


def _tell(status: str, **fields: Any) -> tuple[int, str]:
    told = {"merchant_uid": "order", "external_payment_id": "imp", "amount": "500", **fields}
    return result(deliver(paid(status=status, **told)))


def _ends() -> tuple[str, str, str]:
    return Payment.objects.get().status, Order.objects.get().status, Booking.objects.get().status


CONFIRMED = ("SUCCEEDED", "PAID", "CONFIRMED")


def test_the_event_key_is_the_events_own_id_where_there_is_one(booking: Booking) -> None:
    _tell("paid", event_id="evt")

    assert WebhookEvent.objects.get().event_key == "tilda:evt"


def test_the_event_key_follows_from_the_content_where_there_is_none(booking: Booking) -> None:
    payload = paid(merchant_uid="order", event_id=None, amount="500")
    for _ in range(2):
        deliver(payload)
    deliver({**payload, "status": "failed"})

    first, second = WebhookEvent.objects.order_by("received_at", "pk")
    assert first.event_key == f"tilda:{first.payload_hash}"
    assert (first.deliveries, second.deliveries) == (2, 1)
    assert first.event_key != second.event_key


@pytest.mark.parametrize(
    ("told", "payment", "order", "booked"),
    [
        (["paid"], "SUCCEEDED", "PAID", "CONFIRMED"),
        (["failed"], "FAILED", "PENDING", "PENDING"),
        (["cancelled"], "CANCELED", "PENDING", "PENDING"),
        (["failed", "paid"], "SUCCEEDED", "PAID", "CONFIRMED"),
        (["cancelled", "paid"], "CANCELED", "CANCELED", "CANCELED"),
        (["paid", "failed"], "SUCCEEDED", "PAID", "CONFIRMED"),
        (["paid", "paid"], "SUCCEEDED", "PAID", "CONFIRMED"),
        (["paid", "cancelled"], "CANCELED", "CANCELED", "CANCELED"),
        (["paid", "cancelled", "cancelled"], "CANCELED", "CANCELED", "CANCELED"),
        (["paid", "cancelled", "failed"], "CANCELED", "CANCELED", "CANCELED"),
    ],
)
def test_the_moves(
    booking: Booking, told: list[str], payment: str, order: str, booked: str
) -> None:
    """With the provider's times, in which a cancel comes last."""
    hours = {"failed": 1, "paid": 2, "cancelled": 3}
    for word in told:
        _tell(word, occurred_at=f"2026-02-14T0{hours[word]}:00:00Z")

    assert _ends() == (payment, order, booked)


def test_the_same_event_twice_changes_the_booking_once(booking: Booking) -> None:
    assert _tell("paid", event_id="evt") == (200, "processed")
    paid_at = Booking.objects.get().paid_at

    assert _tell("paid", event_id="evt") == (200, "duplicate")

    assert _ends() == CONFIRMED
    assert Booking.objects.get().paid_at == paid_at
    assert WebhookEvent.objects.count() == Grant.objects.count() == 1


def test_two_paid_events_confirm_once(booking: Booking) -> None:
    for _ in range(2):
        assert _tell("paid") == (200, "processed")

    assert _ends() == CONFIRMED
    assert WebhookEvent.objects.count() == 2
    assert Grant.objects.count() == 1


def test_failed_then_paid_is_paid(booking: Booking) -> None:
    assert [_tell("failed"), _tell("paid")] == [(200, "ignored"), (200, "processed")]

    assert _ends() == CONFIRMED


def test_paid_then_failed_stays_paid(booking: Booking) -> None:
    assert [_tell("paid"), _tell("failed")] == [(200, "processed"), (200, "ignored")]

    assert _ends() == CONFIRMED


def test_the_log_says_which_event_of_which_order_ended_how(booking: Booking) -> None:
    with read_logs() as lines:
        _tell("paid", event_id="evt", event_type="Transaction.Paid")

    (line,) = (line for line in lines if line.get("external_event_id") == "evt")
    assert line["merchant_uid"] == "order"
    assert line["event_type"] == "Transaction.Paid"
