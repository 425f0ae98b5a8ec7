"""What a provider said of a payment, in our words. Pure data: no models, no I/O."""

from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from enum import StrEnum


class FactKind(StrEnum):
    PENDING = "PENDING"
    PAID = "PAID"
    FAILED = "FAILED"
    CANCELED = "CANCELED"
    REFUNDED = "REFUNDED"
    PARTIALLY_REFUNDED = "PARTIALLY_REFUNDED"
    REFUND_FAILED = "REFUND_FAILED"
    DISPUTED = "DISPUTED"
    DISPUTE_WON = "DISPUTE_WON"
    DISPUTE_LOST = "DISPUTE_LOST"
    # The event, read again, says nothing about this payment: its facts before do not count.
    RETRACTED = "RETRACTED"
    # What a person decided, which no provider says: it stands whatever else arrives late.
    STAFF_REVOKED = "STAFF_REVOKED"
    STAFF_REINSTATED = "STAFF_REINSTATED"


@dataclass(frozen=True, order=True)
class Name:
    """What some system calls a payment."""

    system: str
    external_id: str


@dataclass(frozen=True, kw_only=True)
class PaymentFact:
    """`event_id` is the provider's id of this event, None where it sends none. `occurred_at` is
    the provider's own time of what it tells, None where it gives none; it is what makes the
    order of arrival irrelevant. In a refund, `amount` is what this refund gives back and
    `amount_refunded` all that went back so far. `aliases` are other names of the same charge."""

    external_payment_id: str
    kind: FactKind
    incoming_status: str
    event_id: str | None = None
    event_type: str | None = None
    merchant_uid: str | None = None
    email: str | None = None
    amount: Decimal | None = None
    currency: str | None = None
    plan_code: str | None = None
    paid_at: datetime | None = None
    occurred_at: datetime | None = None
    refund_id: str | None = None
    amount_refunded: Decimal | None = None
    aliases: tuple[Name, ...] = ()
    live: bool = True


@dataclass(frozen=True, kw_only=True)
class NotAPayment:
    """A genuine event that tells us nothing about a payment's money."""

    event_id: str | None = None
    event_type: str | None = None
    external_payment_id: str | None = None
    merchant_uid: str | None = None
    incoming_status: str | None = None
    live: bool = True
