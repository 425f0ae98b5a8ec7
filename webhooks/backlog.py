"""What waits, and for how long: for /metrics and /webhooks/health.

Every number comes from a partial index over unfinished rows, so the cost follows the backlog and
not the number of events ever received.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection

from billing.models import PaymentStatus
from webhooks.models import OPEN_STATUSES, EventStatus, ReviewState
from webhooks.transactions import short_transaction


class Unavailable(Exception):
    """The database did not answer."""


@dataclass(frozen=True)
class Backlog:
    events: dict[str, int]
    oldest_due_s: float
    stuck: int
    unlinked_old: int
    not_applied_old: int

    def gauges(self) -> Iterator[tuple[str, str, float]]:
        old = f"for over {settings.WEBHOOK_STUCK_AFTER_S} s"
        yield "webhook_oldest_due_seconds", "Age of the longest overdue event", self.oldest_due_s
        yield "webhook_events_stuck", f"Events overdue {old}", self.stuck
        yield "payments_unlinked_old", f"Payments without a user {old}", self.unlinked_old
        yield (
            "payments_succeeded_not_applied_old",
            f"Money without what it bought {old}",
            self.not_applied_old,
        )


def read_backlog() -> Backlog:
    try:
        with short_transaction(), connection.cursor() as cursor:
            cursor.execute(_SQL, _params())
            *counts, review, oldest_due_s, stuck, unlinked, not_applied = cursor.fetchone()
    except DatabaseError as error:
        raise Unavailable from error
    events = {str(status): number for status, number in zip(OPEN_STATUSES, counts, strict=True)}
    events[EventStatus.FAILED_FINAL] = review
    return Backlog(events, float(oldest_due_s), stuck, unlinked, not_applied)


def _params() -> dict[str, str | int]:
    received, validated, retryable = OPEN_STATUSES
    return {
        "received": received,
        "validated": validated,
        "retryable": retryable,
        "review": ReviewState.OPEN,
        "succeeded": PaymentStatus.SUCCEEDED,
        "old_s": settings.WEBHOOK_STUCK_AFTER_S,
    }


_SQL = """
    WITH open AS (
        SELECT
            count(*) FILTER (WHERE status = %(received)s) AS received,
            count(*) FILTER (WHERE status = %(validated)s) AS validated,
            count(*) FILTER (WHERE status = %(retryable)s) AS retryable,
            greatest(0, extract(epoch FROM now() - min(next_attempt_at))) AS oldest_due_s,
            count(*) FILTER (
                WHERE next_attempt_at < now() - make_interval(secs => %(old_s)s)
            ) AS stuck
        FROM webhooks_webhookevent
        WHERE status IN (%(received)s, %(validated)s, %(retryable)s)
    )
    SELECT
        open.received, open.validated, open.retryable,
        (SELECT count(*) FROM webhooks_webhookevent WHERE review = %(review)s),
        coalesce(open.oldest_due_s, 0), open.stuck,
        (SELECT count(*) FROM billing_payment
         WHERE user_id IS NULL AND status = %(succeeded)s
            AND created_at < now() - make_interval(secs => %(old_s)s)),
        (SELECT count(*) FROM billing_payment
         WHERE status = %(succeeded)s AND subscription_applied_at IS NULL
            AND created_at < now() - make_interval(secs => %(old_s)s)
            -- What a person took back was given once.
            AND NOT EXISTS (SELECT FROM billing_grant WHERE payment_id = billing_payment.id))
    FROM open
"""
