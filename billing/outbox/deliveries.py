"""A delivery's way: due, begun, and then delivered, due again, or dead."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from datetime import datetime, timedelta
from time import monotonic
from typing import Any

from django.conf import settings
from django.db import connection
from django.db.models import QuerySet
from django.db.models.functions import Now

from billing.models import DeliveryStatus, OutboxDelivery
from billing.outbox.envelopes import Envelope
from billing.outbox.holding import Hold

_ATTEMPTS_KEPT = 5
_MAX_ERROR_CHARS = 200

# Only the first of its key that is not through yet may go: a dead one holds back those after it.
_NOTHING_IN_THE_WAY = """
    NOT EXISTS (
        SELECT FROM billing_outboxdelivery AS earlier
        WHERE earlier.target = delivery.target AND earlier.key = delivery.key
            AND earlier.seq < delivery.seq AND earlier.status IN ('PENDING', 'DEAD')
    )
"""
_IS_DUE = f"""
    delivery.status = 'PENDING' AND delivery.next_attempt_at <= statement_timestamp()
    AND {_NOTHING_IN_THE_WAY}
"""


@dataclass(frozen=True)
class Attempt:
    delivery_id: int
    number: int
    begun_at: datetime
    started: float
    log: list[dict[str, Any]]
    message: Envelope

    @property
    def duration_ms(self) -> int:
        return round((monotonic() - self.started) * 1000)


@dataclass(frozen=True)
class Due:
    delivery_id: int
    attempts: int


def due(target: str, *, limit: int) -> list[Due]:
    """At most one of each key, those that wait longest first."""
    sql = f"""
        SELECT delivery.id, delivery.attempts FROM billing_outboxdelivery AS delivery
        WHERE delivery.target = %(target)s AND {_IS_DUE}
        ORDER BY delivery.next_attempt_at, delivery.id LIMIT %(limit)s
    """  # noqa: S608 (our own words only)
    with connection.cursor() as cursor:
        cursor.execute(sql, {"target": target, "limit": limit})
        return [Due(*row) for row in cursor.fetchall()]


def begin(one: Due, hold: Hold) -> Attempt | None:
    """Counts the attempt and moves the next one before this one starts, and commits that: whoever
    dies in the middle of it costs a repeat, and a message that kills its dispatcher uses up its
    own attempts.

    None: it is no longer due, or the target is no longer ours.
    """
    sql = f"""
        UPDATE billing_outboxdelivery AS delivery
        SET attempts = delivery.attempts + 1,
            next_attempt_at = statement_timestamp() + make_interval(secs => %(delay_s)s)
        FROM billing_outboxmessage AS message, billing_outboxtarget AS held
        WHERE delivery.id = %(id)s AND {_IS_DUE} AND message.id = delivery.message_id
            AND held.name = delivery.target AND held.holder = %(holder)s
            AND held.held_until > statement_timestamp()
        RETURNING delivery.attempts, statement_timestamp(), delivery.log,
            message.id, message.type, message.key, message.seq, message.idempotency_key,
            message.created_at, message.data
    """  # noqa: S608 (our own words only)
    delay_s = _retry_delay_s(one.attempts + 1)
    with connection.cursor() as cursor:
        cursor.execute(sql, {"id": one.delivery_id, "holder": hold.holder, "delay_s": delay_s})
        row = cursor.fetchone()
    if row is None:
        return None
    number, begun_at, log, message_id, kind, key, seq, idempotency_key, timestamp, data = row
    message = Envelope(
        id=message_id,
        type=kind,
        key=key,
        seq=seq,
        idempotency_key=idempotency_key,
        timestamp=timestamp,
        data=json.loads(data),
    )
    return Attempt(one.delivery_id, number, begun_at, monotonic(), json.loads(log), message)


def delivered(attempt: Attempt) -> bool:
    """False: a person skipped it, or another dispatcher was quicker."""
    rows = _pending(attempt).update(
        status=DeliveryStatus.DELIVERED,
        delivered_at=Now(),
        next_attempt_at=None,
        last_error=None,
        log=_log(attempt, "delivered"),
    )
    return rows == 1


def failed(attempt: Attempt, error: str, *, counts: bool) -> bool:
    """Whether that was its last attempt. One that does not count is given back."""
    number = attempt.number if counts else attempt.number - 1
    is_last = counts and exhausted(number)
    next_attempt_at = None if is_last else Now() + timedelta(seconds=_retry_delay_s(number))
    rows = (
        _pending(attempt)
        .filter(attempts=attempt.number)
        .update(
            status=DeliveryStatus.DEAD if is_last else DeliveryStatus.PENDING,
            attempts=number,
            next_attempt_at=next_attempt_at,
            last_error=error[:_MAX_ERROR_CHARS],
            log=_log(attempt, error),
        )
    )
    return is_last and rows == 1


def give_up(one: Due) -> bool:
    """Its last attempt ended without a word: it killed its dispatcher."""
    rows = OutboxDelivery.objects.filter(
        pk=one.delivery_id, status=DeliveryStatus.PENDING, attempts=one.attempts
    ).update(
        status=DeliveryStatus.DEAD,
        next_attempt_at=None,
        last_error="the dispatcher died of every attempt",
    )
    return rows == 1


def exhausted(attempts: int) -> bool:
    return bool(attempts >= settings.OUTBOX_MAX_ATTEMPTS)


def _pending(attempt: Attempt) -> QuerySet[OutboxDelivery]:
    return OutboxDelivery.objects.filter(pk=attempt.delivery_id, status=DeliveryStatus.PENDING)


def _log(attempt: Attempt, result: str) -> list[dict[str, Any]]:
    entry = {
        "at": attempt.begun_at.isoformat(timespec="milliseconds"),
        "attempt": attempt.number,
        "ms": attempt.duration_ms,
        "result": result[:_MAX_ERROR_CHARS],
    }
    return [*attempt.log, entry][-_ATTEMPTS_KEPT:]


def _retry_delay_s(attempts: int) -> float:
    """After the 1st, 2nd, 3rd, … failed attempt: 1, 2, 4, 8 s and so on, up to the cap. With
    jitter, so that what failed together does not come back together."""
    grown = settings.OUTBOX_RETRY_FIRST_S * 2.0 ** min(max(attempts - 1, 0), 30)
    return float(min(grown, settings.OUTBOX_RETRY_CAP_S) * random.uniform(0.8, 1.2))  # noqa: S311
