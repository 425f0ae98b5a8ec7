"""Process a stored event and tell the log, the counters and the security log about it."""

from __future__ import annotations

from billing.codes import ErrorCode
from webhooks import metrics, security_log
from webhooks.audit import Request
from webhooks.logbook import Line
from webhooks.models import WebhookEvent
from webhooks.outcomes import Outcome
from webhooks.process import process
from webhooks.providers.base import Result
from webhooks.security_log import Kind


def run(event: WebhookEvent, request: Request) -> Outcome:
    """For whoever has no delivery in hand: recovery, linking, people."""
    line = Line(provider=event.provider, event=event)
    outcome = line.outcome = process(event, request=request)
    line.event = outcome.event
    # A duplicate is a delivery; to look at a finished event again is none.
    if outcome.result is not Result.DUPLICATE:
        tell(outcome, recovered=not request.actor.is_person)
    line.write()
    return outcome


def tell(outcome: Outcome, *, recovered: bool = False) -> None:
    metrics.count(outcome, recovered=recovered)
    fields = {"provider": outcome.event.provider, "webhook_event_id": str(outcome.event.pk)}
    if outcome.result is Result.CONFLICT:
        security_log.note(Kind.CONFLICT, **fields)
    elif outcome.result is not Result.DUPLICATE and outcome.code == ErrorCode.AMOUNT_MISMATCH:
        security_log.note(Kind.AMOUNT_MISMATCH, **fields)
