"""The end of an event's walk: its own row, its siblings', the audit."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import structlog
from django.db import Error as DatabaseError
from django.db.models import Case, Value, When
from django.db.models.functions import Now

from billing.codes import ErrorCode
from webhooks import audit, schedule
from webhooks.audit import Action, Request
from webhooks.judging import Verdict, for_review
from webhooks.models import OPEN_STATUSES, EventStatus, ReviewState, WebhookEvent
from webhooks.outcomes import Change, Outcome, result_of, standing
from webhooks.transactions import short_transaction

logger = structlog.get_logger("webhooks")

MAX_MESSAGE_CHARS = 500  # of the column


def finish(
    event: WebhookEvent,
    request: Request,
    verdict: Verdict,
    change: Change | None = None,
    siblings: list[WebhookEvent] | None = None,
) -> Outcome:
    """`event` and `siblings` are locked; `event` has its `age`."""
    change = change or Change()
    verdict = replace(verdict, message=verdict.message and verdict.message[:MAX_MESSAGE_CHARS])
    age: timedelta = event.age  # type: ignore[attr-defined]
    waits = verdict.status == EventStatus.FAILED_RETRYABLE
    if waits and schedule.waited_too_long(age):
        verdict, waits = for_review(ErrorCode(str(verdict.code)), verdict.message), False
    review = verdict.review or (ReviewState.RESOLVED if event.review else None)
    before = (event.status, event.error_code)
    WebhookEvent.objects.filter(pk=event.pk).update(
        status=verdict.status,
        error_code=verdict.code,
        error_message=verdict.message,
        review=review,
        # Unknown until now where the event could not be read when it came.
        external_payment_id=event.external_payment_id,
        processed_at=Now(),
        next_attempt_at=schedule.after_parking(age) if waits else None,
        # Waiting is not failing: the tries so far are forgotten.
        attempts=0 if waits else event.attempts,
    )
    event.status, event.error_code, event.review = verdict.status, verdict.code, review
    finished_along = _finish_siblings(siblings or []) if change.applied_now else 0
    write_audit(event, request, change, ran=True)
    return Outcome(
        result_of(verdict.status, verdict.code),
        event,
        verdict.code,
        verdict.message,
        change,
        still_parked=waits and before == (verdict.status, verdict.code),
        finished_along=finished_along,
    )


def write_audit(
    event: WebhookEvent, request: Request, change: Change, *, ran: bool = False
) -> None:
    """What was asked for, if that by itself is worth a row, and what really happened."""
    happened = {
        Action.EVENT_REPROCESSED: request.action is Action.EVENT_REPROCESSED,
        Action.PAYMENT_LINKED: change.linked_now,
        Action.REVIEW_OVERRULED: request.decision.overrule and ran,
        Action.PAYMENT_APPLIED: change.applied_now,
    }
    entries = [
        audit.entry(
            action,
            request.actor,
            reason=request.reason,
            event_id=event.pk,
            payment_id=change.payment_id,
            subscription_id=change.subscription_id,
            user_id=change.user_id,
            details=_details(event, change),
        )
        for action, so in happened.items()
        if so
    ]
    if entries:
        audit.write(*entries)


def record_failure(event: WebhookEvent, error: Exception) -> Outcome:
    """After the rollback. Should this fail too, the event is due again by itself."""
    logger.error("processing_failed", webhook_event_id=str(event.pk), exc_info=error)
    message = _describe(error)
    was_open = event.status in OPEN_STATUSES
    if schedule.exhausted(event.attempts):
        verdict = for_review(ErrorCode.RETRIES_EXHAUSTED, message)
    else:
        verdict = Verdict(EventStatus.FAILED_RETRYABLE, ErrorCode.PROCESSING_ERROR, message)
    try:
        if not _mark_failed(event, verdict):
            event.refresh_from_db(fields=["status", "review", "error_code", "error_message"])
    except DatabaseError:
        logger.exception("failure_not_recorded", webhook_event_id=str(event.pk))
    if was_open and event.status in (EventStatus.PROCESSED, EventStatus.IGNORED):
        return standing(event)  # Somebody else finished it while we failed.
    return Outcome(result_of(verdict.status, verdict.code), event, verdict.code, message)


def _mark_failed(event: WebhookEvent, verdict: Verdict) -> bool:
    """Only an unfinished event is marked: one that is final, dismissed or a conflict stays what
    people made of it, whoever tried to run it again and failed."""
    retry = verdict.status == EventStatus.FAILED_RETRYABLE
    with short_transaction():
        rows = WebhookEvent.objects.filter(pk=event.pk, status__in=OPEN_STATUSES).update(
            status=verdict.status,
            error_code=verdict.code,
            error_message=verdict.message,
            review=verdict.review,
            processed_at=Now(),
            next_attempt_at=schedule.after_failure(event.attempts) if retry else None,
        )
    return rows == 1


def _finish_siblings(siblings: list[WebhookEvent]) -> int:
    waiting = [row.pk for row in siblings if row.review != ReviewState.DISMISSED]
    if not waiting:
        return 0
    return WebhookEvent.objects.filter(pk__in=waiting).update(
        status=EventStatus.PROCESSED,
        error_code=None,
        error_message=None,
        processed_at=Now(),
        next_attempt_at=None,
        review=Case(When(review=ReviewState.OPEN, then=Value(ReviewState.RESOLVED))),
    )


def _details(event: WebhookEvent, change: Change) -> dict[str, object]:
    details: dict[str, object] = {"event_status": event.status, "error_code": event.error_code}
    if change.applied_now and change.subscription_end_before and change.subscription_end_after:
        details["end_before"] = change.subscription_end_before.isoformat()
        details["end_after"] = change.subscription_end_after.isoformat()
    return details


def _describe(error: Exception) -> str:
    """The kind of error, never its text: PostgreSQL quotes whole rows in some."""
    cause = error.__cause__ or error
    diagnosis = getattr(cause, "diag", None)
    parts = [
        type(error).__name__,
        getattr(cause, "sqlstate", None),
        getattr(diagnosis, "constraint_name", None),
    ]
    return " ".join(str(part) for part in parts if part)
