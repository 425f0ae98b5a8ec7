"""Whatever changed money or time leaves a row, in the transaction that changed it."""

from __future__ import annotations

import getpass
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from billing.settling import Decision
from webhooks.models import AuditEntry

if TYPE_CHECKING:
    from subscriptions.models import User


class Action(StrEnum):
    PAYMENT_APPLIED = "payment_applied"
    PAYMENT_LINKED = "payment_linked"
    EVENT_REPROCESSED = "event_reprocessed"
    REVIEW_OVERRULED = "review_overruled"
    REVIEW_DISMISSED = "review_dismissed"
    REVIEW_REOPENED = "review_reopened"
    SUBSCRIPTION_EXPIRED = "subscription_expired"
    SUBSCRIPTION_CANCELED = "subscription_canceled"


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


BY_INTAKE = Request(Actor("intake"))
BY_RECOVERY = Request(Actor("recovery"))
BY_LINKING = Request(Actor("linking"))


def entry(action: Action, actor: Actor, *, reason: str = "", **ids_and_details: Any) -> AuditEntry:
    return AuditEntry(action=action, actor=actor.name, reason=reason, **ids_and_details)


def write(*entries: AuditEntry) -> None:
    AuditEntry.objects.bulk_create(entries)
