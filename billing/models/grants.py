from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from billing.models.orders import Booking, Order, Purchase
from billing.models.payments import Payment
from billing.models.rules import finite
from billing.models.wallets import Wallet
from subscriptions.ids import time_ordered_id
from subscriptions.models import Plan, Subscription

_WITHOUT_PERIOD = Q(
    subscription__isnull=True, plan__isnull=True, starts_at__isnull=True, ends_at__isnull=True
)


class Grant(models.Model):
    """What a payment gave. That a payment can have only one, and an order only one live one, is
    the database's own proof that it was applied once."""

    id = models.UUIDField(primary_key=True, default=time_ordered_id, editable=False)
    payment = models.OneToOneField(Payment, on_delete=models.PROTECT, related_name="grant")
    kind = models.CharField(
        max_length=16, choices=Purchase.choices, db_default=Purchase.SUBSCRIPTION
    )
    order = models.ForeignKey(Order, on_delete=models.PROTECT, null=True, related_name="grants")
    # Of a subscription: from, to, and how long it was when it was given.
    subscription = models.ForeignKey(
        Subscription, on_delete=models.PROTECT, null=True, related_name="grants"
    )
    plan = models.ForeignKey(Plan, on_delete=models.PROTECT, null=True)
    starts_at = models.DateTimeField(null=True)
    ends_at = models.DateTimeField(null=True)
    length = models.DurationField(null=True)
    # Of a booking.
    booking = models.ForeignKey(Booking, on_delete=models.PROTECT, null=True, related_name="grants")
    # Of a wallet: what it was credited, or what was spent from it.
    wallet = models.ForeignKey(Wallet, on_delete=models.PROTECT, null=True, related_name="grants")
    amount = models.DecimalField(max_digits=19, decimal_places=4, null=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    revoked_at = models.DateTimeField(null=True)
    revoked_because = models.CharField(max_length=255, null=True)
    # What the revocation took: reinstating gives exactly this back.
    unused = models.DurationField(null=True)
    # Of what was refunded: for how much a person shortened it, and by how much time that really
    # was (used time cannot be cut); and for how much it was kept all the same.
    shortened_for = models.DecimalField(max_digits=19, decimal_places=4, db_default=0)
    shortened_by = models.DurationField(null=True)
    kept_for = models.DecimalField(max_digits=19, decimal_places=4, db_default=0)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(ends_at__gte=F("starts_at")), name="grant_ends_after_start"
            ),
            models.CheckConstraint(
                condition=Q(
                    kind=Purchase.SUBSCRIPTION,
                    subscription__isnull=False,
                    plan__isnull=False,
                    starts_at__isnull=False,
                    ends_at__isnull=False,
                    booking__isnull=True,
                    wallet__isnull=True,
                )
                | _WITHOUT_PERIOD
                & Q(kind=Purchase.BOOKING, booking__isnull=False, wallet__isnull=True)
                | _WITHOUT_PERIOD
                & Q(
                    kind__in=[Purchase.WALLET_TOPUP, Purchase.WALLET_SPENDING],
                    wallet__isnull=False,
                    amount__isnull=False,
                    booking__isnull=True,
                ),
                name="grant_has_its_target",
            ),
            models.CheckConstraint(
                condition=finite("amount"), name="grant_amount_positive_and_finite"
            ),
            models.CheckConstraint(
                condition=finite("shortened_for", allow_zero=True), name="grant_shortened_finite"
            ),
            models.CheckConstraint(
                condition=finite("kept_for", allow_zero=True), name="grant_kept_finite"
            ),
            models.UniqueConstraint(
                fields=["order"],
                condition=Q(order__isnull=False, revoked_at__isnull=True),
                name="grant_one_live_per_order",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["subscription", "starts_at"], name="grant_subscription_start"),
        ]

    def __str__(self) -> str:
        if self.starts_at and self.ends_at:
            return f"{self.starts_at:%Y-%m-%d} to {self.ends_at:%Y-%m-%d}"
        return self.get_kind_display()
