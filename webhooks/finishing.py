"""The end of an event's walk: its own row, its siblings', the audit."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import structlog
from django.db import Error as DatabaseError
from django.db.models import Case, Value, When
from django.db.models.expressions import CombinedExpression
from django.db.models.functions import Now

from billing.codes import WAITING, ErrorCode
from billing.purchases.base import Act
from billing.settlements import Settlement
from webhooks import audit, judging, schedule
from webhooks.archive import ArchiveError
from webhooks.audit import Action, Request
from webhooks.judging import Verdict, for_review
from webhooks.models import OPEN_STATUSES, EventStatus, ReviewState, WebhookEvent
from webhooks.outcomes import Change, Outcome, change_of, result_of, standing
from webhooks.transactions import short_transaction

logger = structlog.get_logger("webhooks")

MAX_MESSAGE_CHARS = 500  # of the column


def finish(
    event: WebhookEvent,
    request: Request,
    verdict: Verdict,
    settlement: Settlement | None = None,
    siblings: list[WebhookEvent] | None = None,
) -> Outcome:
    """`event` and `siblings` are locked; `event` has its `age`."""
    change = change_of(settlement) if settlement else Change()
    verdict = replace(verdict, message=verdict.message and verdict.message[:MAX_MESSAGE_CHARS])
    age: timedelta = event.age  # type: ignore[attr-defined]
    if verdict.status == EventStatus.FAILED_RETRYABLE:
        verdict = _give_up_some_day(verdict, event, age)
    retries = verdict.status == EventStatus.FAILED_RETRYABLE
    waits = retries and verdict.code in WAITING
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
        next_attempt_at=_next_attempt(event, age, waits=waits) if retries else None,
        # Waiting is not failing: the tries so far are forgotten.
        attempts=0 if waits else event.attempts,
    )
    event.status, event.error_code, event.review = verdict.status, verdict.code, review
    finished_along = _finish_siblings(event, siblings or [], settlement) if settlement else 0
    write_audit(event, request, change, ran=True)
    return Outcome(
        result_of(verdict.status, verdict.code),
        event,
        verdict.code,
        verdict.message,
        change,
        still_parked=retries and before == (verdict.status, verdict.code),
        finished_along=finished_along,
    )


def write_audit(
    event: WebhookEvent, request: Request, change: Change, *, ran: bool = False
) -> None:
    """What was asked for, if that by itself is worth a row, and what really happened."""
    ended = Action.RETRY_SCHEDULED if event.status in OPEN_STATUSES else Action.PROCESSING_SUCCEEDED
    happened = {
        Action.EVENT_REPROCESSED: request.action is Action.EVENT_REPROCESSED,
        Action.PAYMENT_LINKED: change.linked_now,
        Action.REVIEW_OVERRULED: request.decision.overrule and ran,
        **{action: change.act is act for act, action in _BY_ACT.items()},
        Action.RESERVATION_RELEASED: change.released,
        ended: ran,
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


_BY_ACT = {
    Act.GAVE: Action.PAYMENT_APPLIED,
    Act.TOOK_BACK: Action.PAYMENT_REVOKED,
    Act.SHORTENED: Action.PAYMENT_SHORTENED,
    Act.REINSTATED: Action.PAYMENT_REINSTATED,
}


def record_failure(event: WebhookEvent, request: Request, error: Exception) -> Outcome:
    """After the rollback. Should this fail too, the event is due again by itself."""
    logger.error("processing_failed", webhook_event_id=str(event.pk), exc_info=error)
    message = _describe(error)
    was_open = event.status in OPEN_STATUSES
    if schedule.exhausted(event.attempts):
        verdict = for_review(ErrorCode.RETRIES_EXHAUSTED, message)
    else:
        verdict = Verdict(EventStatus.FAILED_RETRYABLE, ErrorCode.PROCESSING_ERROR, message)
    try:
        if not _mark_failed(event, request, verdict):
            event.refresh_from_db(fields=["status", "review", "error_code", "error_message"])
    except DatabaseError:
        logger.exception("failure_not_recorded", webhook_event_id=str(event.pk))
    if was_open and event.status in (EventStatus.PROCESSED, EventStatus.IGNORED):
        return standing(event)  # Somebody else finished it while we failed.
    return Outcome(result_of(verdict.status, verdict.code), event, verdict.code, message)


def _mark_failed(event: WebhookEvent, request: Request, verdict: Verdict) -> bool:
    """Only an unfinished event is marked: one that is final, dismissed or a conflict stays what
    people made of it, whoever tried to run it again and failed."""
    retry = verdict.status == EventStatus.FAILED_RETRYABLE
    details = {"attempt": event.attempts, "error": verdict.message}
    actions = [Action.PROCESSING_ATTEMPT_FAILED, *([Action.RETRY_SCHEDULED] if retry else [])]
    with short_transaction():
        rows = WebhookEvent.objects.filter(pk=event.pk, status__in=OPEN_STATUSES).update(
            status=verdict.status,
            error_code=verdict.code,
            error_message=verdict.message,
            review=verdict.review,
            processed_at=Now(),
            next_attempt_at=schedule.after_failure(event.attempts) if retry else None,
        )
        if rows == 1:
            audit.write(
                *(
                    audit.entry(action, request.actor, event_id=event.pk, details=details)
                    for action in actions
                )
            )
    return rows == 1


def _give_up_some_day(verdict: Verdict, event: WebhookEvent, age: timedelta) -> Verdict:
    if verdict.code in WAITING:
        if schedule.waited_too_long(age):
            return for_review(ErrorCode(str(verdict.code)), verdict.message)
    elif schedule.exhausted(event.attempts):
        return for_review(ErrorCode.RETRIES_EXHAUSTED, verdict.message)
    return verdict


def _next_attempt(event: WebhookEvent, age: timedelta, *, waits: bool) -> CombinedExpression:
    return schedule.after_parking(age) if waits else schedule.after_failure(event.attempts)


def _finish_siblings(
    event: WebhookEvent, siblings: list[WebhookEvent], settlement: Settlement
) -> int:
    """What is settled along with this event; returns how many ended PROCESSED by that."""
    settled = judging.settled_along(settlement)
    if settlement.effect and settlement.effect.act is not Act.GAVE:
        siblings = siblings + _opened_meanwhile(settlement, [event, *siblings])
    rows = [row for row in siblings if row.review != ReviewState.DISMISSED and settled(row)]
    unfinished = [row.pk for row in rows if row.status != EventStatus.PROCESSED]
    looked_at = [row.pk for row in rows if row.status == EventStatus.PROCESSED]
    if looked_at:
        WebhookEvent.objects.filter(pk__in=looked_at).update(review=ReviewState.RESOLVED)
    if not unfinished:
        return 0
    return WebhookEvent.objects.filter(pk__in=unfinished).update(
        status=EventStatus.PROCESSED,
        error_code=None,
        error_message=None,
        processed_at=Now(),
        next_attempt_at=None,
        review=Case(When(review=ReviewState.OPEN, then=Value(ReviewState.RESOLVED))),
    )


def _opened_meanwhile(settlement: Settlement, known: list[WebhookEvent]) -> list[WebhookEvent]:
    """Between our look at the siblings and the payment's lock others may have finished and gone to
    review. Those that are locked now wait for the payment, and will see for themselves."""
    facts = settlement.recorded.payment.facts.values("event_id")
    opened = WebhookEvent.objects.filter(pk__in=facts, review=ReviewState.OPEN)
    return list(
        opened.exclude(pk__in=[row.pk for row in known])
        .defer("payload", "raw_body", "headers")
        .select_for_update(skip_locked=True, no_key=True)
    )


def _details(event: WebhookEvent, change: Change) -> dict[str, object]:
    details: dict[str, object] = {"event_status": event.status, "error_code": event.error_code}
    if change.subscription_end_before and change.subscription_end_after:
        details["end_before"] = change.subscription_end_before.isoformat()
        details["end_after"] = change.subscription_end_after.isoformat()
    return details


def _describe(error: Exception) -> str:
    """The kind of error, and its text only if it is ours: PostgreSQL quotes whole rows in some."""
    if isinstance(error, ArchiveError):
        return f"{type(error).__name__}: {error}"
    cause = error.__cause__ or error
    diagnosis = getattr(cause, "diag", None)
    parts = [
        type(error).__name__,
        getattr(cause, "sqlstate", None),
        getattr(diagnosis, "constraint_name", None),
    ]
    return " ".join(str(part) for part in parts if part)
