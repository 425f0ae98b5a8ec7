"""What a provider is. docs/providers.md says how to add one."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any, ClassVar

from billing.codes import ErrorCode
from billing.facts import NotAPayment, PaymentFact
from billing.money import plain


@dataclass(frozen=True)
class Delivery:
    """One HTTP call, as it came. Header names are in lower case."""

    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    # Not of a chunked body: one that the caller broke off looks like a whole one.
    length_announced: bool = True


@dataclass(frozen=True)
class Proof:
    """How a delivery proved itself. `key_id` names the secret without telling it."""

    method: str
    key_id: str


class Rejected(Exception):
    """The delivery did not prove itself. Which check failed is for our logs, not for the caller."""

    def __init__(self, code: ErrorCode, why: str) -> None:
        super().__init__(why)
        self.code = code
        self.why = why


class Malformed(Exception):
    """The body cannot be understood. The text names the rule or field, never the content."""


class Result(StrEnum):
    PROCESSED = "processed"
    IGNORED = "ignored"
    DUPLICATE = "duplicate"
    UNLINKED = "unlinked"
    CONFLICT = "conflict"
    FAILED_RETRYABLE = "failed_retryable"
    FAILED_FINAL = "failed_final"


@dataclass(frozen=True)
class Answer:
    http_status: int
    body: Mapping[str, Any]


class Provider(ABC):
    slug: ClassVar[str]
    # Kept with the event to verify it again later. Never one that is itself a secret.
    headers_kept: ClassVar[tuple[str, ...]] = ("content-type",)

    def __init__(self, secrets: tuple[str, ...]) -> None:
        self.secrets = secrets

    @property
    def enabled(self) -> bool:
        """A provider that signs is off without a secret: never fail-open."""
        return bool(self.secrets)

    @abstractmethod
    def verify(self, delivery: Delivery) -> Proof:
        """Prove who is calling, on the exact bytes received; else raise Rejected."""

    @abstractmethod
    def parse(self, delivery: Delivery) -> PaymentFact | NotAPayment:
        """Their words to ours. Pure: no I/O, no models. Raises Malformed."""

    def payload(self, delivery: Delivery) -> str | None:
        """The body as JSON text for people to read and search, if it can be shown so."""
        return None

    def fingerprint(self, fact: PaymentFact) -> str:
        """Same for resends of one event, different when the money or what it buys differs.

        The version in front lets the recipe change: only equal versions are compared.
        """
        parts = (
            fact.external_payment_id,
            fact.merchant_uid,
            fact.kind,
            _normal(fact.amount),
            fact.currency,
            fact.refund_id,
            _normal(fact.amount_refunded),
            fact.plan_code,
            fact.live,
        )
        return "1:" + hashlib.sha256(repr(parts).encode()).hexdigest()

    def acknowledge(self, result: Result, event_id: str, request_id: str) -> Answer:
        """A stored event is a success to the provider, also one that is in conflict: with any
        other answer it would send it again for days."""
        return Answer(200, {"status": result, "event_id": event_id, "request_id": request_id})


def _normal(amount: Decimal | None) -> str | None:
    """10, 10.0 and 10.00 are the same money."""
    return None if amount is None else plain(amount)
