"""Whatever changed money or time left its row, and what a person changed left their name."""

from __future__ import annotations

from collections.abc import Iterator

from billing.facts import FactKind
from billing.models import DeliveryStatus
from webhooks.audit import Action
from webhooks.invariants.querying import broken_by
from webhooks.models import ReviewState

# The system never takes these by itself.
_MANUAL = [
    Action.EVENT_REPROCESSED,
    Action.REVIEW_OVERRULED,
    Action.REVIEW_DISMISSED,
    Action.REVIEW_REOPENED,
    Action.REVIEW_KEPT,
    Action.SUBSCRIPTION_CANCELED,
    Action.MESSAGE_RESENT,
    Action.MESSAGE_SKIPPED,
    Action.POISON_RETRIED,
    Action.POISON_DISMISSED,
    Action.SERVICE_TOKEN_CREATED,
    Action.SERVICE_TOKEN_REVOKED,
    Action.CUSTOMER_REDACTED,
]
_SOMEBODY = "^(staff|cli|service):."
# A decision and its row are of one short transaction.
_TRANSACTION_S = 60


def manual_action_has_an_actor() -> Iterator[str]:
    """What only people and their services do names who did it."""
    return broken_by(
        """
        SELECT id FROM webhooks_auditentry
        WHERE action = ANY(%(manual)s) AND actor !~ %(somebody)s
        """,
        manual=[str(action) for action in _MANUAL],
        somebody=_SOMEBODY,
    )


def decision_has_an_actor() -> Iterator[str]:
    """Whatever a person decided (took back, reinstated, dismissed, skipped) has an audit row that
    names them."""
    return broken_by(
        """
        SELECT 'fact ' || fact.id FROM billing_fact AS fact
        WHERE fact.kind IN (%(revoked)s, %(reinstated)s) AND NOT EXISTS (
            SELECT FROM webhooks_auditentry AS entry
            WHERE entry.payment_id = fact.payment_id AND entry.actor ~ %(somebody)s
                AND entry.at >= fact.received_at
                AND entry.at < fact.received_at + make_interval(secs => %(transaction_s)s)
        )
        UNION ALL
        SELECT 'grant ' || given.id FROM billing_grant AS given
        WHERE given.revoked_because = 'staff' AND NOT EXISTS (
            SELECT FROM webhooks_auditentry AS entry
            WHERE entry.payment_id = given.payment_id AND entry.actor ~ %(somebody)s
                AND entry.action = %(payment_revoked)s
        )
        UNION ALL
        SELECT 'event ' || event.id FROM webhooks_webhookevent AS event
        WHERE event.review = %(dismissed)s AND NOT EXISTS (
            SELECT FROM webhooks_auditentry AS entry
            WHERE entry.event_id = event.id AND entry.actor ~ %(somebody)s
                AND entry.action = %(review_dismissed)s
        )
        UNION ALL
        SELECT 'delivery ' || delivery.id FROM billing_outboxdelivery AS delivery
        WHERE delivery.status = %(skipped)s AND NOT EXISTS (
            SELECT FROM webhooks_auditentry AS entry
            WHERE entry.action = %(message_skipped)s AND entry.actor ~ %(somebody)s
                AND entry.details ->> 'message_id' = delivery.message_id::text
                AND entry.details ->> 'target' = delivery.target
        )
        """,
        revoked=str(FactKind.STAFF_REVOKED),
        reinstated=str(FactKind.STAFF_REINSTATED),
        somebody=_SOMEBODY,
        transaction_s=_TRANSACTION_S,
        payment_revoked=str(Action.PAYMENT_REVOKED),
        dismissed=ReviewState.DISMISSED,
        review_dismissed=str(Action.REVIEW_DISMISSED),
        skipped=DeliveryStatus.SKIPPED,
        message_skipped=str(Action.MESSAGE_SKIPPED),
    )


def grant_has_its_audit_rows() -> Iterator[str]:
    """Every grant left a row when it was given, and another one when it was taken back."""
    return broken_by(
        """
        SELECT given.id FROM billing_grant AS given
        WHERE NOT EXISTS (
            SELECT FROM webhooks_auditentry AS entry
            WHERE entry.payment_id = given.payment_id AND entry.action = %(applied)s
        ) OR given.revoked_at IS NOT NULL AND NOT EXISTS (
            SELECT FROM webhooks_auditentry AS entry
            WHERE entry.payment_id = given.payment_id AND entry.action = %(revoked)s
        )
        """,
        applied=str(Action.PAYMENT_APPLIED),
        revoked=str(Action.PAYMENT_REVOKED),
    )


RULES = (manual_action_has_an_actor, decision_has_an_actor, grant_has_its_audit_rows)
