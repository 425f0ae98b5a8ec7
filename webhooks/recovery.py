"""What is due is tried again: push for latency is the request itself, this is the safety."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from time import monotonic

import structlog
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now

from billing.codes import ErrorCode
from webhooks import audit, metrics, schedule
from webhooks.audit import BY_RECOVERY, Action
from webhooks.models import OPEN_STATUSES, EventStatus, ReviewState, WebhookEvent
from webhooks.outcomes import Outcome
from webhooks.running import run

logger = structlog.get_logger("webhooks")

BATCH = 100
# How long a claimed batch is ours. Whoever is slower finds its events claimed by others, and
# leaves them alone.
CLAIM_S = 60


def recover(*, for_s: float, batch: int = BATCH) -> Counter[str]:
    """Process what is due, batch by batch, until nothing is or the time is up."""
    results: Counter[str] = Counter()
    stop_at = monotonic() + for_s
    while monotonic() < stop_at and (claimed := _claim(batch)):
        for event in claimed:
            if monotonic() > stop_at:
                break
            outcome = _try(event)
            if outcome:
                results[outcome.result] += 1
    return results


def _claim(batch: int) -> list[WebhookEvent]:
    """Several workers share the due events: what one has locked, the others skip."""
    sql = """
        WITH due AS MATERIALIZED (
            SELECT id FROM webhooks_webhookevent
            WHERE status IN (%(received)s, %(validated)s, %(retryable)s)
                AND next_attempt_at <= now()
            ORDER BY next_attempt_at LIMIT %(batch)s FOR UPDATE SKIP LOCKED
        )
        UPDATE webhooks_webhookevent AS event SET next_attempt_at = now() + %(claim)s
        FROM due WHERE event.id = due.id
        RETURNING event.id, provider, external_event_id, external_payment_id, payload_hash,
            status, signature_valid, attempts, next_attempt_at
    """
    received, validated, retryable = OPEN_STATUSES
    params = {
        "claim": timedelta(seconds=CLAIM_S),
        "received": received,
        "validated": validated,
        "retryable": retryable,
        "batch": batch,
    }
    return list(WebhookEvent.objects.raw(sql, params))


def _try(event: WebhookEvent) -> Outcome | None:
    if not _begin_attempt(event):
        return None
    return run(event, BY_RECOVERY)


def _begin_attempt(event: WebhookEvent) -> bool:
    """Counts the attempt and moves the next one before this one starts, and commits that: an
    event that kills its worker uses up its own attempts, and not those of its batch-mates.

    False: it is no longer ours (somebody else processed or claimed it), or it has no attempt left.
    """
    ours = WebhookEvent.objects.filter(
        pk=event.pk, status__in=OPEN_STATUSES, next_attempt_at=event.next_attempt_at
    )
    if schedule.exhausted(event.attempts):
        _give_up(event, ours)
        return False
    event.attempts += 1
    with transaction.atomic():
        rows = ours.update(
            attempts=event.attempts, next_attempt_at=schedule.after_failure(event.attempts)
        )
        if rows == 1:
            audit.write(
                audit.entry(
                    Action.PROCESSING_ATTEMPT_STARTED,
                    BY_RECOVERY.actor,
                    event_id=event.pk,
                    details={"attempt": event.attempts},
                )
            )
    return rows == 1


def _give_up(event: WebhookEvent, ours: QuerySet[WebhookEvent]) -> None:
    """Its last attempt ended without a word: it killed its worker."""
    rows = ours.update(
        status=EventStatus.FAILED_FINAL,
        error_code=ErrorCode.RETRIES_EXHAUSTED,
        review=ReviewState.OPEN,
        next_attempt_at=None,
        processed_at=Now(),
    )
    if rows:
        metrics.failed_final.labels(event.provider).inc()
        logger.error("retries_exhausted", webhook_event_id=str(event.pk), attempts=event.attempts)
