"""What became of an event, told to the caller, the log line and the counters alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from billing.codes import WAITING, ErrorCode
from billing.facts import NotAPayment, PaymentFact
from billing.purchases.base import Act
from billing.settlements import Settlement
from webhooks.models import EventStatus, WebhookEvent
from webhooks.providers.base import Result


@dataclass(frozen=True)
class Change:
    """Before → after, of the payment and of what it bought."""

    payment_id: UUID | None = None
    user_id: UUID | None = None
    email: str | None = None
    merchant_uid: str | None = None
    payment_status_before: str | None = None
    payment_status_after: str | None = None
    subscription_id: UUID | None = None
    subscription_end_before: datetime | None = None
    subscription_end_after: datetime | None = None
    subscription_applied_before: datetime | None = None
    subscription_applied_after: datetime | None = None
    linked_now: bool = False
    db_txid: str | None = None

    act: Act | None = None
    released: bool = False

    @property
    def applied_now(self) -> bool:
        return self.act in (Act.GAVE, Act.REINSTATED)


@dataclass(frozen=True)
class Outcome:
    result: Result
    event: WebhookEvent
    code: ErrorCode | None = None
    message: str | None = None
    change: Change = field(default_factory=Change)
    said: PaymentFact | NotAPayment | None = None
    # It was parked before for the same reason: news to nobody.
    still_parked: bool = False
    # Other events of the payment that were finished along with this one.
    finished_along: int = 0

    @property
    def lag_ms(self) -> float:
        """received_at to now, by the database's clock: `age` was read with the event's lock."""
        age: timedelta = getattr(self.event, "age", timedelta())
        return age / timedelta(milliseconds=1)


def change_of(settlement: Settlement) -> Change:
    recorded, effect = settlement.recorded, settlement.effect
    payment = recorded.payment
    return Change(
        payment_id=payment.pk,
        user_id=payment.user_id,
        email=payment.email,
        merchant_uid=payment.merchant_uid,
        payment_status_before=recorded.status_before,
        payment_status_after=payment.status,
        subscription_id=payment.subscription_id,
        subscription_end_before=effect.end_before if effect else None,
        subscription_end_after=effect.end_after if effect else None,
        subscription_applied_before=recorded.stored["subscription_applied_at"],
        subscription_applied_after=payment.subscription_applied_at,
        linked_now=settlement.linked_now,
        db_txid=recorded.txid,
        act=effect.act if effect else None,
        released=settlement.released,
    )


def result_of(status: EventStatus, code: ErrorCode | None) -> Result:
    if status == EventStatus.FAILED_RETRYABLE and code in WAITING:
        return Result.UNLINKED
    return {
        EventStatus.PROCESSED: Result.PROCESSED,
        EventStatus.IGNORED: Result.IGNORED,
        EventStatus.FAILED_FINAL: Result.FAILED_FINAL,
    }.get(status, Result.FAILED_RETRYABLE)


def standing(event: WebhookEvent) -> Outcome:
    """Nothing was done now; the event stays as it is."""
    code = ErrorCode(event.error_code) if event.error_code else None
    return Outcome(Result.DUPLICATE, event, code, event.error_message)
