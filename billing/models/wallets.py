"""Money kept here. The balance is the sum of the entries; reservations hold a part of it back."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from billing.models.rules import currency_code, finite
from subscriptions.ids import time_ordered_id
from subscriptions.models import User


class Wallet(models.Model):
    id = models.UUIDField(primary_key=True, default=time_ordered_id, editable=False)
    user = models.ForeignKey(User, on_delete=models.PROTECT, related_name="wallets")
    currency = models.CharField(max_length=3)
    balance = models.DecimalField(max_digits=19, decimal_places=4, db_default=0)
    # Of the balance, what is held by reservations in RESERVED.
    reserved = models.DecimalField(max_digits=19, decimal_places=4, db_default=0)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["user", "currency"], name="wallet_one_per_currency"),
            models.CheckConstraint(
                condition=finite("balance", allow_zero=True), name="wallet_balance_not_negative"
            ),
            models.CheckConstraint(
                condition=Q(reserved__gte=0, reserved__lte=F("balance")),
                name="wallet_reserved_is_covered",
            ),
            models.CheckConstraint(condition=currency_code(), name="wallet_currency_code"),
        ]

    def __str__(self) -> str:
        return f"{self.currency} wallet {self.pk}"


class EntryKind(models.TextChoices):
    TOPUP = "TOPUP"
    TOPUP_REVOKED = "TOPUP_REVOKED"
    TOPUP_REINSTATED = "TOPUP_REINSTATED"
    SPENDING = "SPENDING"
    SPENDING_REFUNDED = "SPENDING_REFUNDED"
    SPENDING_REINSTATED = "SPENDING_REINSTATED"
    MANUAL = "MANUAL"


class WalletEntry(models.Model):
    """A trigger refuses update and delete."""

    id = models.BigAutoField(primary_key=True)
    wallet = models.ForeignKey(Wallet, on_delete=models.PROTECT, related_name="entries")
    amount = models.DecimalField(max_digits=19, decimal_places=4)
    kind = models.CharField(max_length=24, choices=EntryKind.choices)
    # The payment it is about: of this system or, for reservations made by others, of theirs.
    payment_id = models.UUIDField(null=True)
    balance_after = models.DecimalField(max_digits=19, decimal_places=4)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        verbose_name_plural = "wallet entries"
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(kind__in=EntryKind.values), name="entry_kind_known"),
            models.CheckConstraint(
                condition=Q(amount__gt=-(10**15), amount__lt=10**15) & ~Q(amount=0),
                name="entry_amount_finite_not_zero",
            ),
            models.CheckConstraint(
                condition=finite("balance_after", allow_zero=True),
                name="entry_balance_not_negative",
            ),
        ]
        indexes: ClassVar = [models.Index(fields=["payment_id"], name="entry_payment")]

    def __str__(self) -> str:
        return f"{self.kind} {self.amount}"


class ReservationStatus(models.TextChoices):
    RESERVED = "RESERVED"
    COMMITTED = "COMMITTED"
    RELEASED = "RELEASED"


class Reservation(models.Model):
    id = models.UUIDField(primary_key=True, default=time_ordered_id, editable=False)
    # No foreign key: who reserves may know the payment before this system does.
    payment_id = models.UUIDField(unique=True)
    wallet = models.ForeignKey(Wallet, on_delete=models.PROTECT, related_name="reservations")
    amount = models.DecimalField(max_digits=19, decimal_places=4)
    status = models.CharField(
        max_length=16, choices=ReservationStatus.choices, default=ReservationStatus.RESERVED
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    finished_at = models.DateTimeField(null=True)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(status__in=ReservationStatus.values), name="reservation_status_known"
            ),
            models.CheckConstraint(
                condition=finite("amount"), name="reservation_amount_positive_and_finite"
            ),
            models.CheckConstraint(
                condition=Q(status=ReservationStatus.RESERVED, finished_at__isnull=True)
                | ~Q(status=ReservationStatus.RESERVED) & Q(finished_at__isnull=False),
                name="reservation_finished_some_day",
            ),
        ]
        indexes: ClassVar = [models.Index(fields=["wallet", "status"], name="reservation_wallet")]

    def __str__(self) -> str:
        return f"{self.amount} {self.status}"
