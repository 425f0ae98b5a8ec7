"""No event waits for ever, says what did not happen, or lost what it brought."""

from __future__ import annotations

from collections.abc import Iterator

from django.conf import settings

from billing.codes import WAITING
from billing.facts import FactKind
from billing.models import DeliveryStatus, PaymentStatus
from webhooks.invariants.querying import broken_by
from webhooks.models import OPEN_STATUSES, EventStatus


def processed_success_was_applied() -> Iterator[str]:
    """An event that tells a success is PROCESSED only if its payment was given what it bought, once
    or before, or its money has gone back since."""
    return broken_by(
        """
        SELECT event.id FROM webhooks_webhookevent AS event
        JOIN LATERAL (
            SELECT kind, payment_id FROM billing_fact
            WHERE event_id = event.id ORDER BY id DESC LIMIT 1
        ) AS told ON told.kind = %(paid)s
        JOIN billing_payment AS payment ON payment.id = told.payment_id
        WHERE event.status = %(processed)s
            AND NOT payment.status = ANY(%(went_back)s)
            AND NOT EXISTS (SELECT FROM billing_grant AS given WHERE given.payment_id = payment.id)
        """,
        paid=str(FactKind.PAID),
        processed=EventStatus.PROCESSED,
        went_back=[PaymentStatus.REFUNDED, PaymentStatus.CANCELED],
    )


def applied_payment_has_its_event() -> Iterator[str]:
    """A payment that was given what it bought has an event that says so: PROCESSED, or looked at
    by a person since."""
    return broken_by(
        """
        SELECT given.payment_id FROM billing_grant AS given
        WHERE NOT EXISTS (
            SELECT FROM billing_fact AS fact
            JOIN webhooks_webhookevent AS event ON event.id = fact.event_id
            WHERE fact.payment_id = given.payment_id
                AND (event.status = %(processed)s OR event.review IS NOT NULL)
        )
        """,
        processed=EventStatus.PROCESSED,
    )


def attempts_are_bounded() -> Iterator[str]:
    """Nothing unfinished was tried more often than the settings allow; waiting for a user is no
    attempt."""
    received, validated, retryable = OPEN_STATUSES
    return broken_by(
        """
        SELECT id::text FROM webhooks_webhookevent
        WHERE status IN (%(received)s, %(validated)s, %(retryable)s)
            AND attempts > %(most)s + 1 AND NOT coalesce(error_code = ANY(%(waiting)s), false)
        UNION ALL
        SELECT 'delivery ' || id FROM billing_outboxdelivery
        WHERE status = %(pending)s AND attempts > %(most_deliveries)s + 1
        """,
        received=received,
        validated=validated,
        retryable=retryable,
        most=settings.WEBHOOK_MAX_ATTEMPTS,
        waiting=sorted(WAITING),
        pending=DeliveryStatus.PENDING,
        most_deliveries=settings.OUTBOX_MAX_ATTEMPTS,
    )


def no_event_is_stuck() -> Iterator[str]:
    """No event has been due for longer than WEBHOOK_STUCK_AFTER_S: recovery looks after each."""
    received, validated, retryable = OPEN_STATUSES
    return broken_by(
        """
        SELECT id FROM webhooks_webhookevent
        WHERE status IN (%(received)s, %(validated)s, %(retryable)s)
            AND next_attempt_at < now() - make_interval(secs => %(old_s)s)
        """,
        received=received,
        validated=validated,
        retryable=retryable,
        old_s=settings.WEBHOOK_STUCK_AFTER_S,
    )


def payload_matches_its_hash() -> Iterator[str]:
    """The bytes that came are those that are kept. What was archived is in a file, which
    `verify_archive` reads; what was redacted is gone with its headers; nothing else is."""
    return broken_by(
        """
        SELECT id FROM webhooks_webhookevent
        WHERE raw_body IS NOT NULL AND (
            archived_in IS NOT NULL
            OR payload_hash <> encode(sha256(convert_to(provider, 'UTF8') || raw_body), 'hex')
        ) OR raw_body IS NULL AND (payload IS NOT NULL OR headers <> '{}')
        """
    )


RULES = (
    processed_success_was_applied,
    applied_payment_has_its_event,
    attempts_are_bounded,
    no_event_is_stuck,
    payload_matches_its_hash,
)
