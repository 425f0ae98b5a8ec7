from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum
from typing import Protocol
from uuid import UUID

from django.db import transaction

from billing.models import Grant, Order, Payment, Purchase
from billing.policies import Objection
from subscriptions.models import Plan


class Act(StrEnum):
    GAVE = "gave"
    TOOK_BACK = "took_back"
    SHORTENED = "shortened"
    REINSTATED = "reinstated"


@dataclass(frozen=True, kw_only=True)
class Effect:
    """What the customer has now that was not so before."""

    act: Act
    kind: Purchase
    subscription_id: UUID | None = None
    # The granted period, and the subscription's end before and after.
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    end_before: datetime | None = None
    end_after: datetime | None = None
    booking_id: UUID | None = None
    wallet_id: UUID | None = None
    amount: Decimal | None = None


@dataclass(frozen=True, kw_only=True)
class Bargain:
    """A payment and what it shall give. The payment is linked, both are locked, and no policy
    objects (or a person overruled it)."""

    payment: Payment
    order: Order | None
    plan: Plan | None
    now: datetime
    overruled: bool


class Kind(Protocol):
    """A kind of purchase: a module with these functions. Whatever cannot be done without harm is
    an objection, and nothing has happened then. `grant` is changed in memory; the caller saves
    it."""

    def give(self, bargain: Bargain) -> Effect | Objection: ...

    def take_back(self, grant: Grant, now: datetime) -> Effect | Objection: ...

    def shorten(
        self, grant: Grant, by: Decimal, whole: Decimal, now: datetime
    ) -> Effect | Objection:
        """`by` of the payment's `whole` sum was refunded since it was shortened last; below zero,
        when a refund failed after all."""

    def reinstate(self, grant: Grant, now: datetime) -> Effect | Objection: ...


def all_or_nothing(*steps: Callable[[], Effect | Objection | None]) -> Effect | Objection:
    """The last step's effect, or the first objection, and then nothing of the steps before it."""
    savepoint = transaction.savepoint()
    result: Effect | Objection | None = None
    for step in steps:
        result = step()
        if isinstance(result, Objection):
            transaction.savepoint_rollback(savepoint)
            return result
    transaction.savepoint_commit(savepoint)
    if result is None:
        raise ValueError("the last step has an effect")
    return result
