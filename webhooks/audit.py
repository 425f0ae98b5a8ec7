"""Whatever changed money or time leaves a row, in the transaction that changed it."""

from __future__ import annotations

import getpass
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from billing.settlements import Decision
from webhooks.models import AuditEntry

if TYPE_CHECKING:
    from subscriptions.models import User


class Action(StrEnum):
    # What became of a delivery and of its attempts.
    EVENT_RECEIVED = "event_received"
    EVENT_INSERTED = "event_inserted"
    EVENT_DEDUPED = "event_deduped"
    CONFLICT_DETECTED = "conflict_detected"
    PROCESSING_ATTEMPT_STARTED = "processing_attempt_started"
    PROCESSING_ATTEMPT_FAILED = "processing_attempt_failed"
    PROCESSING_SUCCEEDED = "processing_succeeded"
    RETRY_SCHEDULED = "retry_scheduled"
    # What it did.
    PAYMENT_APPLIED = "payment_applied"
    PAYMENT_REVOKED = "payment_revoked"
    PAYMENT_SHORTENED = "payment_shortened"
    PAYMENT_REINSTATED = "payment_reinstated"
    RESERVATION_RELEASED = "reservation_released"
    PAYMENT_LINKED = "payment_linked"
    EVENT_REPROCESSED = "event_reprocessed"
    REVIEW_OVERRULED = "review_overruled"
    REVIEW_DISMISSED = "review_dismissed"
    REVIEW_REOPENED = "review_reopened"
    REVIEW_KEPT = "review_kept"
    SUBSCRIPTION_EXPIRED = "subscription_expired"
    SUBSCRIPTION_CANCELED = "subscription_canceled"
    MESSAGE_RESENT = "message_resent"
    MESSAGE_SKIPPED = "message_skipped"
    POISON_RETRIED = "poison_retried"
    POISON_DISMISSED = "poison_dismissed"
    SERVICE_TOKEN_CREATED = "service_token_created"  # noqa: S105
    SERVICE_TOKEN_REVOKED = "service_token_revoked"  # noqa: S105
    ORDER_CREATED = "order_created"
    PAYMENT_INITIATED = "payment_initiated"
    PAYMENT_NAMED = "payment_named"
    WALLET_OPENED = "wallet_opened"
    WALLET_RESERVED = "wallet_reserved"
    WALLET_COMMITTED = "wallet_committed"
    WALLET_RELEASED = "wallet_released"
    EVENTS_ARCHIVED = "events_archived"
    CUSTOMER_REDACTED = "customer_redacted"


@dataclass(frozen=True)
class Actor:
    """Who does it: the system itself, or a person."""

    name: str
    is_person: bool = False

    @classmethod
    def staff(cls, user: User) -> Actor:
        return cls(f"staff:{user.pk}", is_person=True)

    @classmethod
    def command_line(cls) -> Actor:
        try:
            login = getpass.getuser()
        except (KeyError, OSError):  # a container's user id may have no name
            login = "unknown"
        return cls(f"cli:{login}", is_person=True)


SCHEDULE = Actor("schedule")


@dataclass(frozen=True)
class Request:
    """Who wants an event processed and why, and what a person decided about it, if one did."""

    actor: Actor
    action: Action | None = None
    reason: str = ""
    decision: Decision = field(default_factory=Decision)
    # What it waited for is there: also events that were given up are tried.
    reopens: bool = False


BY_INTAKE = Request(Actor("intake"))
BY_RECOVERY = Request(Actor("recovery"))
BY_LINKING = Request(Actor("linking"))
BY_NAMING = Request(Actor("linking"), reopens=True)


def entry(action: Action, actor: Actor, *, reason: str = "", **ids_and_details: Any) -> AuditEntry:
    return AuditEntry(action=action, actor=actor.name, reason=reason, **ids_and_details)


def write(*entries: AuditEntry) -> None:
    AuditEntry.objects.bulk_create(entries)
