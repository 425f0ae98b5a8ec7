"""What others must hear of, and what was made of it on the way: one row per message, one per
message and target, one per target."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from billing.models.payments import PaymentStatus


class OutboxMessage(models.Model):
    """Written in the transaction of the change it tells of. The id is derived from what it tells,
    so that a rerun makes the same one."""

    id = models.UUIDField(primary_key=True, editable=False)
    # What it is about: a payment, or a subscription that changed without one.
    key = models.UUIDField()
    # 1, 2, 3, … per key, taken under the lock of the row that the key names.
    seq = models.PositiveIntegerField()
    type = models.CharField(max_length=64)
    # Stable for ever: consumers build their exactly-once on it.
    idempotency_key = models.CharField(max_length=255, unique=True)
    data = models.JSONField()
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["key", "seq"], name="message_seq_unique_per_key"),
        ]
        indexes: ClassVar = [models.Index(fields=["created_at"], name="message_created")]

    def __str__(self) -> str:
        return f"{self.type} {self.key} #{self.seq}"


class DeliveryStatus(models.TextChoices):
    PENDING = "PENDING"
    DELIVERED = "DELIVERED"
    # Given up: waits for a person, and holds back its own key at its own target only.
    DEAD = "DEAD"
    # A person decided that the target need not hear of it.
    SKIPPED = "SKIPPED"


class OutboxDelivery(models.Model):
    """One message's way to one target."""

    id = models.BigAutoField(primary_key=True)
    message = models.ForeignKey(OutboxMessage, on_delete=models.CASCADE, related_name="deliveries")
    target = models.CharField(max_length=64)
    # Copied from the message, for the index that finds who is next.
    key = models.UUIDField()
    seq = models.PositiveIntegerField()
    status = models.CharField(
        max_length=16, choices=DeliveryStatus.choices, db_default=DeliveryStatus.PENDING
    )
    attempts = models.PositiveIntegerField(db_default=0)
    next_attempt_at = models.DateTimeField(null=True, db_default=Now())
    delivered_at = models.DateTimeField(null=True)
    # The last few tries: when, how long, what came back.
    log = models.JSONField(default=list, db_default=models.Value([], models.JSONField()))
    last_error = models.CharField(max_length=500, null=True)

    class Meta:
        verbose_name_plural = "outbox deliveries"
        permissions: ClassVar = [("resend_outboxdelivery", "Can resend and skip dead letters")]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["message", "target"], name="delivery_once_per_target"),
            models.CheckConstraint(
                condition=Q(status__in=DeliveryStatus.values), name="delivery_status_known"
            ),
            models.CheckConstraint(
                condition=~Q(status=DeliveryStatus.PENDING) | Q(next_attempt_at__isnull=False),
                name="delivery_pending_is_due_some_day",
            ),
        ]
        indexes: ClassVar = [
            models.Index(
                fields=["target", "next_attempt_at"],
                condition=Q(status=DeliveryStatus.PENDING),
                name="delivery_due",
            ),
            # What is not through yet holds back what comes after it.
            models.Index(
                fields=["target", "key", "seq"],
                condition=Q(status__in=[DeliveryStatus.PENDING, DeliveryStatus.DEAD]),
                name="delivery_in_the_way",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.target}: {self.key} #{self.seq}"


class OutboxTarget(models.Model):
    """What is known of a target: who dispatches to it now, and whether it is worth trying."""

    name = models.CharField(max_length=64, primary_key=True)
    holder = models.UUIDField(null=True)
    held_until = models.DateTimeField(db_default=Now())
    failures_in_a_row = models.PositiveIntegerField(db_default=0)
    # The circuit breaker: nothing is sent before this moment.
    open_until = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return self.name


class PoisonMessage(models.Model):
    """An incoming message that could not be taken: kept for a person, and the stream goes on."""

    id = models.BigAutoField(primary_key=True)
    source = models.CharField(max_length=64)
    position = models.CharField(max_length=255)
    body = models.BinaryField()
    error = models.CharField(max_length=500)
    review = models.CharField(
        max_length=16,
        choices=[(word, word) for word in ("OPEN", "RESOLVED", "DISMISSED")],
        db_default="OPEN",
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        permissions: ClassVar = [("decide_poisonmessage", "Can retry and dismiss")]
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["source", "position"], name="poison_kept_once"),
        ]

    def __str__(self) -> str:
        return f"{self.source} {self.position}"


class PaymentView(models.Model):
    """The read model: what the API shows of a payment. Written by its consumer only."""

    payment_id = models.UUIDField(primary_key=True)
    # Of the newest message that is in here.
    seq = models.PositiveIntegerField()
    told_at = models.DateTimeField()
    provider = models.CharField(max_length=64)
    external_payment_id = models.CharField(max_length=255)
    provider_txn_id = models.CharField(max_length=255, null=True)
    merchant_uid = models.CharField(max_length=255, null=True)
    user_id = models.UUIDField(null=True)
    status = models.CharField(max_length=16, choices=PaymentStatus.choices)
    amount = models.DecimalField(max_digits=19, decimal_places=4, null=True)
    currency = models.CharField(max_length=3, null=True)
    amount_refunded = models.DecimalField(max_digits=19, decimal_places=4)
    paid_at = models.DateTimeField(null=True)
    applied_at = models.DateTimeField(null=True)
    created_at = models.DateTimeField()

    class Meta:
        indexes: ClassVar = [
            models.Index("user_id", F("created_at").desc(), name="view_user_newest"),
            models.Index("status", F("created_at").desc(), name="view_status_newest"),
            models.Index(fields=["merchant_uid"], name="view_merchant_uid"),
            models.Index(F("created_at").desc(), name="view_newest"),
        ]

    def __str__(self) -> str:
        return f"{self.payment_id} {self.status}"


class ProcessedMessage(models.Model):
    """Which messages a consumer took. Cleaned after seven days: by then nothing comes again."""

    id = models.BigAutoField(primary_key=True)
    consumer = models.CharField(max_length=64)
    message_id = models.UUIDField()
    at = models.DateTimeField(db_default=Now())

    class Meta:
        db_table = "billing_processed_messages"
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["consumer", "message_id"], name="processed_once_per_consumer"
            ),
        ]
        indexes: ClassVar = [models.Index(fields=["at"], name="processed_at")]

    def __str__(self) -> str:
        return f"{self.consumer} {self.message_id}"
