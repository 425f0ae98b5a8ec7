"""A payment, every name it goes by, and everything its provider said of it."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.db.models.functions import Lower, Now

from billing.facts import FactKind
from billing.models.rules import currency_code, finite
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
    # The order it names; `order` is set once that order exists.
    merchant_uid = models.CharField(max_length=255, null=True, blank=True)
    order = models.ForeignKey(
        "billing.Order", on_delete=models.PROTECT, null=True, blank=True, related_name="payments"
    )
    # Started by this system, not first heard of from a provider.
    initiated_at = models.DateTimeField(null=True)
    paid_at = models.DateTimeField(null=True)
    failed_at = models.DateTimeField(null=True)
    canceled_at = models.DateTimeField(null=True)
    # When it was given what it bought, whatever that is. Null again once that was taken back.
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
                condition=finite("amount"), name="payment_amount_positive_and_finite"
            ),
            models.CheckConstraint(
                condition=finite("amount_refunded", allow_zero=True),
                name="payment_amount_refunded_finite",
            ),
            models.CheckConstraint(condition=currency_code(), name="payment_currency_code"),
            models.CheckConstraint(
                condition=~Q(external_payment_id="")
                & ~Q(provider_txn_id="")
                & ~Q(email="")
                & ~Q(merchant_uid=""),
                name="payment_ids_never_blank",
            ),
            models.CheckConstraint(
                condition=Q(subscription_applied_at__isnull=True) | Q(user__isnull=False),
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
            models.Index(
                fields=["merchant_uid"],
                condition=Q(merchant_uid__isnull=False),
                name="payment_merchant_uid",
            ),
            models.Index(
                fields=["provider_txn_id"],
                condition=Q(provider_txn_id__isnull=False),
                name="payment_provider_txn_id",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.provider} {self.external_payment_id}"


class PaymentAlias(models.Model):
    """Every name of a payment, its own first one included: one charge may be told of under several
    ids, or by two providers. The unique rule is what makes them one payment."""

    id = models.BigAutoField(primary_key=True)
    system = models.CharField(max_length=64)
    external_id = models.CharField(max_length=255)
    payment = models.ForeignKey(Payment, on_delete=models.PROTECT, related_name="aliases")

    class Meta:
        verbose_name_plural = "payment aliases"
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["system", "external_id"], name="alias_of_one_payment"),
            models.CheckConstraint(
                condition=~Q(system="") & ~Q(external_id=""), name="alias_never_blank"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.system} {self.external_id}"


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
    merchant_uid = models.CharField(max_length=255, null=True)
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
                condition=finite("amount"), name="fact_amount_positive_and_finite"
            ),
            models.CheckConstraint(
                condition=finite("amount_refunded", allow_zero=True),
                name="fact_amount_refunded_finite",
            ),
        ]
        indexes: ClassVar = [models.Index(fields=["event_id", "-id"], name="fact_newest_of_event")]

    def __str__(self) -> str:
        return f"{self.kind} {self.event_key}"


class RefundStatus(models.TextChoices):
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"


class Refund(models.Model):
    """Money that went back, by the provider's id of it: told twice, it counts once. Follows from
    the facts, as the payment does."""

    id = models.BigAutoField(primary_key=True)
    payment = models.ForeignKey(Payment, on_delete=models.PROTECT, related_name="refunds")
    external_refund_id = models.CharField(max_length=255)
    # Null where the provider tells only its running total.
    amount = models.DecimalField(max_digits=19, decimal_places=4, null=True)
    currency = models.CharField(max_length=3, null=True)
    status = models.CharField(max_length=16, choices=RefundStatus.choices)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["payment", "external_refund_id"], name="refund_unique_per_payment"
            ),
            models.CheckConstraint(
                condition=Q(status__in=RefundStatus.values), name="refund_status_known"
            ),
            models.CheckConstraint(
                condition=finite("amount"), name="refund_amount_positive_and_finite"
            ),
            models.CheckConstraint(
                condition=~Q(external_refund_id=""), name="refund_id_never_blank"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.external_refund_id} {self.status}"
