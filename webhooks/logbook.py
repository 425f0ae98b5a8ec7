"""One line per webhook, with everything an investigation starts from, and never the payload."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from time import perf_counter
from typing import Any

import structlog
from django.conf import settings

from billing.facts import NotAPayment, PaymentFact
from webhooks.models import WebhookEvent
from webhooks.outcomes import Outcome

logger = structlog.get_logger("webhooks")


@dataclass
class Line:
    """Filled in as the walk goes on, written once at its end, however it ends."""

    started: float = field(default_factory=perf_counter)
    provider: str = "unknown"
    signature_valid: bool | None = None
    said: PaymentFact | NotAPayment | None = None
    event: WebhookEvent | None = None
    outcome: Outcome | None = None
    http_status: int | None = None
    error_code: str | None = None
    error_message: str | None = None

    @property
    def duration_ms(self) -> float:
        return round((perf_counter() - self.started) * 1000, 2)

    def write(self) -> None:
        logger.info("webhook", **self._fields())

    def _fields(self) -> dict[str, Any]:
        outcome = self.outcome
        said = self.said or (outcome.said if outcome else None)
        event = self.event
        fact = said if isinstance(said, PaymentFact) else None
        occurred_at = fact.occurred_at if fact else None
        return {
            "provider": self.provider,
            "webhook_event_id": event and str(event.pk),
            **_ids(said or event),
            "event_key": event and event.event_key,
            "signature_valid": event.signature_valid if event else self.signature_valid,
            "incoming_status": said and said.incoming_status,
            "amount": str(fact.amount) if fact and fact.amount is not None else None,
            "currency": fact and fact.currency,
            "email": fact and fact.email,
            **_age(occurred_at, event),
            **_outcome_fields(outcome),
            **({"http_status": self.http_status} if self.http_status else {}),
            **({"error_code": self.error_code} if self.error_code else {}),
            **({"error_message": self.error_message} if self.error_message else {}),
            "duration_ms": self.duration_ms,
        }


def _ids(source: PaymentFact | NotAPayment | WebhookEvent | None) -> dict[str, str | None]:
    """From what the delivery says; from the stored row where nobody read it this time."""
    stored = isinstance(source, WebhookEvent)
    return {
        "external_event_id": getattr(source, "external_event_id" if stored else "event_id", None),
        "external_payment_id": getattr(source, "external_payment_id", None),
        "merchant_uid": getattr(source, "merchant_uid", None),
        "event_type": getattr(source, "event_type", None),
    }


def _outcome_fields(outcome: Outcome | None) -> dict[str, Any]:
    change = outcome.change if outcome else None
    return {
        "result": outcome and outcome.result,
        "reason": outcome and (outcome.code or outcome.result),
        "user_id": change and _text(change.user_id),
        "payment_status_before": change and change.payment_status_before,
        "payment_status_after": change and change.payment_status_after,
        "subscription_end_before": change and _text(change.subscription_end_before),
        "subscription_end_after": change and _text(change.subscription_end_after),
        "subscription_applied_before": change and _text(change.subscription_applied_before),
        "subscription_applied_after": change and _text(change.subscription_applied_after),
        "db_txid": change and change.db_txid,
        "error_code": outcome and outcome.code,
        "error_message": outcome and outcome.message,
    }


def _age(occurred_at: datetime | None, event: WebhookEvent | None) -> dict[str, Any]:
    if occurred_at is None or event is None:
        return {"event_age_ms": None, "late_webhook": False}
    age = event.received_at - occurred_at
    late = age > timedelta(seconds=settings.WEBHOOK_LATE_AFTER_S)
    return {"event_age_ms": age // timedelta(milliseconds=1), "late_webhook": late}


def _text(value: object) -> str | None:
    if isinstance(value, datetime):
        return value.isoformat()
    return None if value is None else str(value)
