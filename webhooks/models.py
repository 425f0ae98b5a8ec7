"""The door: what came in, and who did what about it."""

from __future__ import annotations

from typing import ClassVar

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now

from billing.codes import ErrorCode
from subscriptions.ids import time_ordered_id


class EventStatus(models.TextChoices):
    RECEIVED = "RECEIVED"
    VALIDATED = "VALIDATED"
    PROCESSED = "PROCESSED"
    IGNORED = "IGNORED"
    FAILED_RETRYABLE = "FAILED_RETRYABLE"
    FAILED_FINAL = "FAILED_FINAL"


# Not finished: recovery looks after these, and a redelivery processes them at once.
OPEN_STATUSES = (EventStatus.RECEIVED, EventStatus.VALIDATED, EventStatus.FAILED_RETRYABLE)


class ReviewState(models.TextChoices):
    OPEN = "OPEN"
    RESOLVED = "RESOLVED"
    DISMISSED = "DISMISSED"


# Forged rows and conflicting ones must not take a genuine event's place.
COUNTS_AS_KNOWN = (Q(signature_valid=True) | Q(signature_valid__isnull=True)) & Q(
    conflict_of__isnull=True
)


class WebhookEvent(models.Model):
    id = models.UUIDField(primary_key=True, default=time_ordered_id, editable=False)
    provider = models.CharField(max_length=64)
    external_event_id = models.CharField(max_length=255, null=True)
    external_payment_id = models.CharField(max_length=255, null=True)
    merchant_uid = models.CharField(max_length=255, null=True)
    event_type = models.CharField(max_length=255, null=True)
    # For reading and searching; NUL and lone surrogates, which JSONB refuses, are replaced.
    payload = models.JSONField(null=True)
    # The truth: the exact bytes, and the headers that are needed to verify them again.
    # Both are null once the event was archived.
    raw_body = models.BinaryField(null=True)
    headers = models.JSONField(default=dict)
    payload_hash = models.CharField(max_length=64)
    # Of the money-relevant fields: tells a resend from a conflict.
    fingerprint = models.CharField(max_length=80, null=True)
    # True: proven. Null: the provider signs nothing and its API was not asked yet. False: forged.
    signature_valid = models.BooleanField(null=True)
    signature_method = models.CharField(max_length=32, null=True)
    key_id = models.CharField(max_length=16, null=True)
    status = models.CharField(max_length=20, choices=EventStatus.choices)
    received_at = models.DateTimeField(db_default=Now())
    occurred_at = models.DateTimeField(null=True)
    processed_at = models.DateTimeField(null=True)
    attempts = models.PositiveIntegerField(db_default=0)
    next_attempt_at = models.DateTimeField(null=True)
    deliveries = models.PositiveIntegerField(db_default=1)
    is_test = models.BooleanField(db_default=False)
    review = models.CharField(max_length=16, choices=ReviewState.choices, null=True)
    conflict_of = models.ForeignKey(
        "self", on_delete=models.PROTECT, null=True, related_name="conflicts"
    )
    error_code = models.CharField(max_length=64, choices=ErrorCode.choices, null=True)
    error_message = models.CharField(max_length=500, null=True)
    # The archive's file that holds the payload, the bytes and the headers, once they are there.
    archived_in = models.CharField(max_length=255, null=True)
    # Forged requests only: where they came from, and the place in the capped sample they take.
    source_ip = models.GenericIPAddressField(null=True)
    forged_slot = models.PositiveIntegerField(null=True, unique=True)

    class Meta:
        permissions: ClassVar = [
            ("reprocess_webhookevent", "Can reprocess events"),
            ("decide_webhookevent", "Can apply anyway and dismiss"),
        ]
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["provider", "external_event_id"],
                condition=Q(external_event_id__isnull=False) & COUNTS_AS_KNOWN,
                name="event_unique_by_event_id",
            ),
            models.UniqueConstraint(
                fields=["provider", "payload_hash"],
                condition=Q(external_event_id__isnull=True) & COUNTS_AS_KNOWN,
                name="event_unique_by_payload",
            ),
            models.UniqueConstraint(
                fields=["conflict_of", "payload_hash"],
                condition=Q(conflict_of__isnull=False),
                name="event_conflict_kept_once",
            ),
            models.CheckConstraint(
                condition=Q(status__in=EventStatus.values), name="event_status_known"
            ),
            models.CheckConstraint(
                condition=Q(review__isnull=True) | Q(review__in=ReviewState.values),
                name="event_review_known",
            ),
            models.CheckConstraint(
                condition=~Q(external_event_id="")
                & ~Q(external_payment_id="")
                & ~Q(merchant_uid=""),
                name="event_ids_never_blank",
            ),
            models.CheckConstraint(
                # Nothing may wait without a time at which somebody looks at it again.
                condition=~Q(status__in=OPEN_STATUSES) | Q(next_attempt_at__isnull=False),
                name="event_open_is_due_some_day",
            ),
            models.CheckConstraint(
                condition=~Q(signature_valid=False, signature_valid__isnull=False)
                | Q(status=EventStatus.FAILED_FINAL),
                name="event_forged_is_final",
            ),
        ]
        indexes: ClassVar = [
            models.Index(fields=["external_payment_id"], name="event_external_payment_id"),
            models.Index(
                fields=["merchant_uid"],
                condition=Q(merchant_uid__isnull=False),
                name="event_merchant_uid",
            ),
            models.Index(fields=["received_at"], name="event_received_at"),
            models.Index(fields=["status", "received_at"], name="event_status_received_at"),
            models.Index(
                fields=["next_attempt_at"],
                condition=Q(status__in=OPEN_STATUSES),
                name="event_due",
            ),
            models.Index(
                fields=["received_at"], condition=Q(review=ReviewState.OPEN), name="event_review"
            ),
            models.Index(
                fields=["received_at"],
                condition=Q(archived_in__isnull=True),
                name="event_not_archived",
            ),
        ]

    def __str__(self) -> str:
        return self.event_key

    @property
    def event_key(self) -> str:
        return f"{self.provider}:{self.external_event_id or self.payload_hash}"


class ReviewItem(WebhookEvent):
    """The events that wait for a person."""

    class Meta:
        proxy = True
        verbose_name = "review item"
        verbose_name_plural = "review queue"


class AuditEntry(models.Model):
    """Who changed money or time, when and why. A trigger refuses update and delete. Only ids:
    no personal data, and no foreign key that a deletion elsewhere would touch."""

    id = models.UUIDField(primary_key=True, default=time_ordered_id, editable=False)
    at = models.DateTimeField(db_default=Now())
    action = models.CharField(max_length=64)
    actor = models.CharField(max_length=255)
    reason = models.CharField(max_length=500, blank=True, default="")
    event_id = models.UUIDField(null=True)
    payment_id = models.UUIDField(null=True)
    subscription_id = models.UUIDField(null=True)
    user_id = models.UUIDField(null=True)
    details = models.JSONField(default=dict)
    txid = models.BigIntegerField(
        db_default=models.Func(
            function="pg_current_xact_id", template="(%(function)s()::text::bigint)"
        )
    )

    class Meta:
        verbose_name_plural = "audit entries"
        indexes: ClassVar = [
            models.Index("event_id", F("at").desc(), name="audit_event"),
            models.Index("payment_id", F("at").desc(), name="audit_payment"),
            models.Index("subscription_id", F("at").desc(), name="audit_subscription"),
            models.Index(F("at").desc(), name="audit_newest"),
        ]

    def __str__(self) -> str:
        return self.action


class Lease(models.Model):
    """Who runs a job that must not run twice at once. An expired lease is anybody's."""

    job = models.CharField(max_length=64, primary_key=True)
    holder = models.UUIDField()
    expires_at = models.DateTimeField()

    def __str__(self) -> str:
        return self.job


class ServiceToken(models.Model):
    """A machine's key to the API. Only its hash is kept; it is shown once, when it is made."""

    id = models.UUIDField(primary_key=True, default=time_ordered_id, editable=False)
    name = models.CharField(max_length=64, unique=True)
    token_hash = models.CharField(max_length=64, unique=True)
    scopes = models.JSONField(default=list)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    expires_at = models.DateTimeField()
    revoked_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        permissions: ClassVar = [("revoke_servicetoken", "Can revoke service tokens")]

    def __str__(self) -> str:
        return self.name


class IdempotentAnswer(models.Model):
    """What a request with an Idempotency-Key was answered: asked again, it gets the same."""

    id = models.BigAutoField(primary_key=True)
    client = models.CharField(max_length=128)
    key = models.CharField(max_length=255)
    request_hash = models.CharField(max_length=64)
    http_status = models.PositiveSmallIntegerField(null=True)
    body = models.JSONField(null=True)
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(fields=["client", "key"], name="idempotency_key_per_client"),
        ]
        indexes: ClassVar = [models.Index(fields=["created_at"], name="idempotent_created")]

    def __str__(self) -> str:
        return f"{self.client} {self.key}"
