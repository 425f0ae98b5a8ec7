"""What a payment is for, when somebody said so beforehand."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Now

from billing.models.rules import currency_code, finite
from subscriptions.ids import time_ordered_id
from subscriptions.models import Plan, User


class Purchase(models.TextChoices):
    """What money can buy here."""

    SUBSCRIPTION = "SUBSCRIPTION"
    BOOKING = "BOOKING"
    WALLET_TOPUP = "WALLET_TOPUP"
    # What a payment from a wallet's reservation spends; never an order's.
    WALLET_SPENDING = "WALLET_SPENDING"


class OrderStatus(models.TextChoices):
    PENDING = "PENDING"
    PAID = "PAID"
    CANCELED = "CANCELED"
    REFUNDED = "REFUNDED"


_ORDERABLE = (Purchase.SUBSCRIPTION, Purchase.BOOKING, Purchase.WALLET_TOPUP)


class Order(models.Model):
    id = models.UUIDField(primary_key=True, default=time_ordered_id, editable=False)
    merchant_uid = models.CharField(max_length=255, unique=True)
    buys = models.CharField(
        max_length=16, choices=[(kind.value, kind.label) for kind in _ORDERABLE]
    )
    amount = models.DecimalField(max_digits=19, decimal_places=4)
    currency = models.CharField(max_length=3)
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="orders")
    plan = models.ForeignKey(Plan, on_delete=models.PROTECT, null=True, blank=True)
    wallet = models.ForeignKey("billing.Wallet", on_delete=models.PROTECT, null=True, blank=True)
    status = models.CharField(
        max_length=16, choices=OrderStatus.choices, default=OrderStatus.PENDING
    )
    paid_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(status__in=OrderStatus.values), name="order_status_known"
            ),
            models.CheckConstraint(
                condition=Q(buys=Purchase.SUBSCRIPTION, plan__isnull=False, wallet__isnull=True)
                | Q(buys=Purchase.BOOKING, plan__isnull=True, wallet__isnull=True)
                | Q(buys=Purchase.WALLET_TOPUP, plan__isnull=True, wallet__isnull=False),
                name="order_says_what_it_buys",
            ),
            models.CheckConstraint(
                condition=finite("amount"), name="order_amount_positive_and_finite"
            ),
            models.CheckConstraint(condition=currency_code(), name="order_currency_code"),
            models.CheckConstraint(
                condition=~Q(merchant_uid=""), name="order_merchant_uid_never_blank"
            ),
            models.CheckConstraint(
                condition=~Q(status=OrderStatus.PAID) | Q(paid_at__isnull=False),
                name="order_paid_some_day",
            ),
        ]
        indexes: ClassVar = [
            models.Index("user", models.F("created_at").desc(), name="order_user_newest"),
            models.Index(fields=["status", "created_at"], name="order_status_created"),
        ]

    def __str__(self) -> str:
        return self.merchant_uid


class BookingStatus(models.TextChoices):
    PENDING = "PENDING"
    CONFIRMED = "CONFIRMED"
    CANCELED = "CANCELED"


class Booking(models.Model):
    id = models.UUIDField(primary_key=True, default=time_ordered_id, editable=False)
    order = models.OneToOneField(Order, on_delete=models.PROTECT, related_name="booking")
    # What is booked, in the words of the system that takes bookings.
    reference = models.CharField(max_length=255, null=True, blank=True)
    status = models.CharField(
        max_length=16, choices=BookingStatus.choices, default=BookingStatus.PENDING
    )
    paid_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(status__in=BookingStatus.values), name="booking_status_known"
            ),
            models.CheckConstraint(
                condition=~Q(status=BookingStatus.CONFIRMED) | Q(paid_at__isnull=False),
                name="booking_confirmed_was_paid",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.reference or self.order_id} {self.status}"
