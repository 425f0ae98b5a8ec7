"""The money: what providers said of it, and what it gave."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Lower, Now

from billing.facts import FactKind
from subscriptions.ids import time_ordered_id
from subscriptions.models import Plan, Subscription, User


class PaymentStatus(models.TextChoices):
    """What the provider says of the payment. Whether it was applied is another matter."""

    RECEIVED = "RECEIVED"
    PROCESSING = "PROCESSING"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    REFUNDED = "REFUNDED"


def _finite(field: str, *, allow_zero: bool = False) -> Q:
    """NaN is greater than every number in PostgreSQL, so the upper bound refuses it as well."""
    lowest = Q(**{f"{field}__gte": 0}) if allow_zero else Q(**{f"{field}__gt": 0})
    return Q(**{f"{field}__isnull": True}) | lowest & Q(**{f"{field}__lt": 10**15})


class Payment(models.Model):
    id = models.UUIDField(primary_key=True, default=time_ordered_id, editable=False)
    provider = models.CharField(max_length=64)
    external_payment_id = models.CharField(max_length=255)
    provider_txn_id = models.CharField(max_length=255, null=True, blank=True)
    user = models.ForeignKey(
        User, on_delete=models.PROTECT, null=True, blank=True, related_name="payments"
    )
    # As the provider spelled it; matched by lower case.
    email = models.CharField(max_length=254, null=True, blank=True)
    amount = models.DecimalField(max_digits=19, decimal_places=4, null=True)
    currency = models.CharField(max_length=3, null=True)
    amount_refunded = models.DecimalField(max_digits=19, decimal_places=4, db_default=0)
    status = models.CharField(
        max_length=16, choices=PaymentStatus.choices, default=PaymentStatus.RECEIVED
    )
    plan_code = models.CharField(max_length=255, null=True, blank=True)
    plan = models.ForeignKey(Plan, on_delete=models.PROTECT, null=True, blank=True)
    paid_at = models.DateTimeField(null=True)
    failed_at = models.DateTimeField(null=True)
    canceled_at = models.DateTimeField(null=True)
    subscription_applied_at = models.DateTimeField(null=True)
    subscription = models.ForeignKey(
        Subscription, on_delete=models.PROTECT, null=True, blank=True, related_name="payments"
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        permissions: ClassVar = [("link_payment", "Can link payments to users")]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["provider", "external_payment_id"], name="payment_unique_per_provider"
            ),
            models.CheckConstraint(
                condition=Q(status__in=PaymentStatus.values), name="payment_status_known"
            ),
            models.CheckConstraint(
                condition=_finite("amount"), name="payment_amount_positive_and_finite"
            ),
            models.CheckConstraint(
                condition=_finite("amount_refunded", allow_zero=True),
                name="payment_amount_refunded_finite",
            ),
            models.CheckConstraint(
                condition=Q(currency__isnull=True) | Q(currency__regex=r"^[A-Z]{3}$"),
                name="payment_currency_code",
            ),
            models.CheckConstraint(
                condition=~Q(external_payment_id="") & ~Q(provider_txn_id="") & ~Q(email=""),
                name="payment_ids_never_blank",
            ),
            models.CheckConstraint(
                condition=Q(subscription_applied_at__isnull=True)
                | Q(user__isnull=False, subscription__isnull=False),
                name="payment_applied_to_somebody",
            ),
        ]
        indexes: ClassVar = [
            models.Index("user", models.F("created_at").desc(), name="payment_user_newest"),
            models.Index(fields=["status"], name="payment_status"),
            models.Index(Lower("email"), name="payment_email_lower"),
            models.Index(
                fields=["created_at"],
                condition=Q(status=PaymentStatus.SUCCEEDED, user__isnull=True),
                name="payment_unlinked",
            ),
            models.Index(
                fields=["created_at"],
                condition=Q(status=PaymentStatus.SUCCEEDED, subscription_applied_at__isnull=True),
                name="payment_succeeded_not_applied",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.provider} {self.external_payment_id}"


class Fact(models.Model):
    """What the provider said, for ever: one per event, and another one should the event be read
    in another way later. A payment's state is a fold over these. A trigger refuses update and
    delete, except that an e-mail may be blanked."""

    # By the database's sequence: the newest reading of an event is the one that counts.
    id = models.BigAutoField(primary_key=True)
    event_id = models.UUIDField()
    event_key = models.CharField(max_length=400)
    reading = models.CharField(max_length=64)
    payment = models.ForeignKey(Payment, on_delete=models.PROTECT, related_name="facts")
    kind = models.CharField(max_length=32, choices=[(kind, kind) for kind in FactKind])
    amount = models.DecimalField(max_digits=19, decimal_places=4, null=True)
    currency = models.CharField(max_length=3, null=True)
    email = models.CharField(max_length=254, null=True)
    plan_code = models.CharField(max_length=255, null=True)
    paid_at = models.DateTimeField(null=True)
    occurred_at = models.DateTimeField(null=True)
    received_at = models.DateTimeField()
    refund_id = models.CharField(max_length=255, null=True)
    amount_refunded = models.DecimalField(max_digits=19, decimal_places=4, null=True)
    live = models.BooleanField(default=True)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(condition=Q(kind__in=list(FactKind)), name="fact_kind_known"),
            models.CheckConstraint(
                condition=_finite("amount"), name="fact_amount_positive_and_finite"
            ),
            models.CheckConstraint(
                condition=_finite("amount_refunded", allow_zero=True),
                name="fact_amount_refunded_finite",
            ),
        ]
        indexes: ClassVar = [models.Index(fields=["event_id", "-id"], name="fact_newest_of_event")]

    def __str__(self) -> str:
        return f"{self.kind} {self.event_key}"


class Grant(models.Model):
    """What a payment gave. That a payment can have only one is the database's own proof that it
    was applied once."""

    id = models.UUIDField(primary_key=True, default=time_ordered_id, editable=False)
    payment = models.OneToOneField(Payment, on_delete=models.PROTECT, related_name="grant")
    subscription = models.ForeignKey(Subscription, on_delete=models.PROTECT, related_name="grants")
    plan = models.ForeignKey(Plan, on_delete=models.PROTECT)
    starts_at = models.DateTimeField()
    ends_at = models.DateTimeField()
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    revoked_at = models.DateTimeField(null=True)
    revoked_because = models.CharField(max_length=255, null=True)

    class Meta:
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(ends_at__gte=models.F("starts_at")), name="grant_ends_after_start"
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["subscription", "starts_at"], name="grant_subscription_start"),
        ]

    def __str__(self) -> str:
        return f"{self.starts_at:%Y-%m-%d} to {self.ends_at:%Y-%m-%d}"
