"""The durable point: once `store` returns, the event survives anything."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.db import DataError, connection

from billing.codes import ErrorCode
from billing.facts import NotAPayment, PaymentFact
from subscriptions.ids import time_ordered_id
from webhooks.audit import BY_INTAKE, Action
from webhooks.models import OPEN_STATUSES, EventStatus, ReviewState, WebhookEvent
from webhooks.providers.base import Delivery, Malformed, Proof, Provider
from webhooks.transactions import LIMITS, limits

# Everything but what the database fills in itself, and the due time, which is by its clock.
_COLUMNS = (
    "id",
    "provider",
    "external_event_id",
    "external_payment_id",
    "merchant_uid",
    "event_type",
    "payload",
    "raw_body",
    "headers",
    "payload_hash",
    "fingerprint",
    "signature_valid",
    "signature_method",
    "key_id",
    "status",
    "occurred_at",
    "attempts",
    "is_test",
    "review",
    "conflict_of_id",
    "error_code",
    "error_message",
    "source_ip",
    "forged_slot",
)
# What the walk needs back; the body need not travel twice.
_RETURNED = (
    "id",
    "provider",
    "external_event_id",
    "external_payment_id",
    "merchant_uid",
    "event_type",
    "payload_hash",
    "fingerprint",
    "signature_valid",
    "status",
    "received_at",
    "attempts",
    "deliveries",
    "review",
    "error_code",
    "error_message",
)


@dataclass(frozen=True)
class Stored:
    event: WebhookEvent
    # As the first delivery of this event, to the byte.
    same_bytes: bool
    is_conflict: bool = False


def store(
    provider: Provider,
    delivery: Delivery,
    proof: Proof,
    said: PaymentFact | NotAPayment | Malformed,
) -> Stored:
    """Insert the event or find the one it repeats. Committed when it returns.

    A repeat waits here while the first is being processed, and then sees how it ended.
    """
    values = event_values(provider, delivery, said) | {
        "payload": None if isinstance(said, Malformed) else provider.payload(delivery),
        "signature_valid": True,
        "signature_method": proof.method,
        "key_id": proof.key_id,
    }
    try:
        event, became = _insert_or_find(values)
    except DataError:
        # What PostgreSQL cannot show as JSON must not keep the bytes out.
        event, became = _insert_or_find(values | {"payload": None})
    if became == Action.CONFLICT_DETECTED:
        return _store_conflict(event, values)
    return Stored(event, same_bytes=event.payload_hash == values["payload_hash"])


def payload_hash(provider: Provider, body: bytes) -> str:
    return hashlib.sha256(provider.slug.encode() + body).hexdigest()


def _insert_or_find(values: dict[str, Any]) -> tuple[WebhookEvent, str]:
    """The event, and whether it was inserted, is known, or is in conflict with what is known."""
    key = "external_event_id" if values["external_event_id"] is not None else "payload_hash"
    null = "IS NOT NULL" if key == "external_event_id" else "IS NULL"
    # The condition is that of the unique constraints in models.py.
    on_conflict = f"""
        ON CONFLICT (provider, {key})
        WHERE external_event_id {null}
            AND (signature_valid OR signature_valid IS NULL) AND conflict_of_id IS NULL
        DO UPDATE SET deliveries = known.deliveries + 1
        RETURNING {", ".join(_RETURNED)}, xmax = 0 AS is_new
    """
    *row, became = _execute(_with_audit(_insert_sql(on_conflict)), values | _audit_values(values))
    return WebhookEvent.from_db(connection.alias, _RETURNED, row), became


def _store_conflict(first: WebhookEvent, values: dict[str, Any]) -> Stored:
    conflict = values | {
        "conflict_of_id": first.pk,
        "status": EventStatus.FAILED_FINAL,
        "next_attempt_in_s": None,
        "attempts": 0,
        "review": ReviewState.OPEN,
        "error_code": ErrorCode.PAYLOAD_CONFLICT,
        "error_message": f"the same event id came before with other content: {first.pk}",
    }
    on_conflict = f"""
        ON CONFLICT (conflict_of_id, payload_hash) WHERE conflict_of_id IS NOT NULL
        DO UPDATE SET deliveries = known.deliveries + 1
        RETURNING {", ".join(_RETURNED)}
    """
    row = insert(on_conflict, conflict)
    event = WebhookEvent.from_db(connection.alias, _RETURNED, row)
    return Stored(event, same_bytes=True, is_conflict=True)


def event_values(
    provider: Provider, delivery: Delivery, said: PaymentFact | NotAPayment | Malformed
) -> dict[str, Any]:
    values: dict[str, Any] = dict.fromkeys(_COLUMNS) | {
        "id": time_ordered_id(),
        "provider": provider.slug,
        "raw_body": delivery.body,
        "headers": _kept_headers(provider, delivery),
        "payload_hash": payload_hash(provider, delivery.body),
        "status": EventStatus.VALIDATED,
        # This process is about to make the first attempt; should it die, recovery looks then.
        "attempts": 1,
        "next_attempt_in_s": settings.WEBHOOK_FIRST_DUE_AFTER_S,
        "is_test": False,
        **limits(),
    }
    if isinstance(said, Malformed):
        return values | {
            "status": EventStatus.FAILED_FINAL,
            "next_attempt_in_s": None,
            "review": ReviewState.OPEN,
            "error_code": ErrorCode.MALFORMED,
            "error_message": str(said),
        }
    values |= {
        "external_event_id": said.event_id,
        "external_payment_id": said.external_payment_id,
        "merchant_uid": said.merchant_uid,
        "event_type": said.event_type,
        "is_test": not said.live,
    }
    if isinstance(said, PaymentFact):
        values |= {"occurred_at": said.occurred_at, "fingerprint": provider.fingerprint(said)}
    return values


def insert(on_conflict: str, values: dict[str, Any]) -> Any:
    """Without audit: for what is only a sample, or is audited already."""
    return _execute(_insert_sql(on_conflict), values)


def _execute(sql: str, values: dict[str, Any]) -> Any:
    """The limits and the insert travel together and are one transaction, committed when this
    returns: BEGIN and COMMIT would cost two more round trips for one insert."""
    with connection.cursor() as cursor:
        cursor.execute(f"{LIMITS}; {sql}", values)
        cursor.nextset()  # The limits' own result came first.
        return cursor.fetchone()


def _insert_sql(on_conflict: str) -> str:
    columns = ", ".join(_COLUMNS)
    values = ", ".join(f"%({column})s" for column in _COLUMNS)
    due = "now() + make_interval(secs => %(next_attempt_in_s)s)"
    # Names and clauses are this module's own; every value is a parameter.
    return f"""
        INSERT INTO webhooks_webhookevent AS known ({columns}, next_attempt_at)
        VALUES ({values}, {due})
        {on_conflict}
    """  # noqa: S608


def _with_audit(insert_sql: str) -> str:
    """What the delivery became, and the audit rows that say so.

    Cosmetic differences are a resend; other money, or none before and some now, are a conflict.
    Fingerprints of different recipes cannot be compared.
    """
    return f"""
        WITH stored AS ({insert_sql}), judged AS (
            SELECT *, CASE
                WHEN is_new THEN %(inserted)s
                WHEN payload_hash = %(payload_hash)s
                    OR fingerprint IS NOT DISTINCT FROM %(fingerprint)s
                    OR split_part(fingerprint, ':', 1) <> split_part(%(fingerprint)s, ':', 1)
                THEN %(deduped)s ELSE %(conflict)s
            END AS became FROM stored
        ), audited AS (
            INSERT INTO webhooks_auditentry (id, action, actor, reason, event_id, details)
            SELECT entry.id, entry.action, %(actor)s, '', judged.id, '{{}}'
            FROM judged CROSS JOIN LATERAL (VALUES
                (%(audit_id_1)s::uuid, %(received)s),
                (%(audit_id_2)s::uuid, judged.became),
                (%(audit_id_3)s::uuid, CASE
                    WHEN is_new THEN %(started)s
                    WHEN became = %(deduped)s AND judged.status = ANY(%(open)s) THEN %(started)s
                END)
            ) AS entry (id, action)
            WHERE entry.action IS NOT NULL
        )
        SELECT {", ".join(_RETURNED)}, became FROM judged
    """  # noqa: S608


def _audit_values(values: dict[str, Any]) -> dict[str, Any]:
    begins = values["status"] == EventStatus.VALIDATED
    return {
        "actor": BY_INTAKE.actor.name,
        "received": Action.EVENT_RECEIVED,
        "inserted": Action.EVENT_INSERTED,
        "deduped": Action.EVENT_DEDUPED,
        "conflict": Action.CONFLICT_DETECTED,
        "started": Action.PROCESSING_ATTEMPT_STARTED if begins else None,
        "open": [str(status) for status in OPEN_STATUSES],
        "audit_id_1": time_ordered_id(),
        "audit_id_2": time_ordered_id(),
        "audit_id_3": time_ordered_id(),
    }


def _kept_headers(provider: Provider, delivery: Delivery) -> str:
    kept = {name: delivery.headers.get(name) for name in provider.headers_kept}
    return json.dumps({name: value for name, value in kept.items() if value is not None})
