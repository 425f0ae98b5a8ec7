from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from django.db.models.functions import Now

from billing.codes import ErrorCode
from billing.models import Booking, BookingStatus, Grant, Order, Purchase
from billing.policies import Objection
from billing.purchases.base import Act, Bargain, Effect


def give(bargain: Bargain) -> Effect | Objection:
    if bargain.order is None:
        raise ValueError("a booking is bought by an order")
    open_to_payment = [BookingStatus.PENDING]
    if bargain.overruled:
        open_to_payment.append(BookingStatus.CANCELED)
    rows = Booking.objects.filter(order=bargain.order, status__in=open_to_payment)
    if rows.update(status=BookingStatus.CONFIRMED, paid_at=bargain.now, updated_at=Now()) != 1:
        return Objection(ErrorCode.ORDER_CLOSED, "the booking does not wait for a payment")
    return _effect(Act.GAVE, Booking.objects.get(order=bargain.order))


def take_back(grant: Grant, now: datetime) -> Effect | Objection:
    return _move(grant, BookingStatus.CONFIRMED, BookingStatus.CANCELED, Act.TOOK_BACK)


def close(order: Order) -> None:
    """Its money went back before it could be confirmed."""
    Booking.objects.filter(order=order, status=BookingStatus.PENDING).update(
        status=BookingStatus.CANCELED, updated_at=Now()
    )


def shorten(grant: Grant, by: Decimal, whole: Decimal, now: datetime) -> Objection:
    return Objection(ErrorCode.PARTIAL_REFUND, "a booking cannot be shortened: keep or revoke it")


def reinstate(grant: Grant, now: datetime) -> Effect | Objection:
    return _move(grant, BookingStatus.CANCELED, BookingStatus.CONFIRMED, Act.REINSTATED)


def _move(
    grant: Grant, before: BookingStatus, after: BookingStatus, act: Act
) -> Effect | Objection:
    rows = Booking.objects.filter(grants=grant, status=before)
    if rows.update(status=after, updated_at=Now()) != 1:
        return Objection(ErrorCode.ORDER_CLOSED, f"the booking is not {before}")
    return _effect(act, Booking.objects.get(grants=grant))


def _effect(act: Act, booking: Booking) -> Effect:
    return Effect(act=act, kind=Purchase.BOOKING, booking_id=booking.pk)
