"""A payment is what its facts say, and has what it is due."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.db.models import Exists, OuterRef

from billing.codes import ErrorCode
from billing.facts import FactKind
from billing.fold import fold
from billing.models import Fact, Payment, PaymentStatus, Refund, RefundStatus
from billing.recording_sql import FOLDED_FIELDS
from billing.refund_sums import GIVE_BACK
from webhooks.invariants.querying import broken_by
from webhooks.models import OPEN_STATUSES, EventStatus, ReviewState

# Payments whose facts are in memory at once.
_BATCH = 500

# As the fold says it: a person's newest decision counts, whatever else arrived late.
_STAFF_REVOKED = """
    coalesce((
        SELECT decision.kind = %(staff_revoked)s FROM billing_fact AS decision
        WHERE decision.payment_id = payment.id
            AND decision.kind IN (%(staff_revoked)s, %(staff_reinstated)s)
        ORDER BY decision.id DESC LIMIT 1
    ), false)
"""
_DECISIONS = {
    "staff_revoked": str(FactKind.STAFF_REVOKED),
    "staff_reinstated": str(FactKind.STAFF_REINSTATED),
}
_received, _validated, _retryable = OPEN_STATUSES
# Why what was given may stay given although its money went back: a person looks at it.
_TAKING_BACK_STOPPED = [ErrorCode.WALLET_SHORT, ErrorCode.ORDER_CLOSED, ErrorCode.REVOKE_DUE]


def payment_equals_its_facts() -> Iterator[str]:
    """A payment's status, sums, names and times are the fold of its facts."""
    payments = Payment.objects.only("pk", *FOLDED_FIELDS).prefetch_related("facts")
    for payment in payments.iterator(chunk_size=_BATCH):
        folded = fold(payment.facts.all())
        if any(getattr(payment, name) != getattr(folded, name) for name in FOLDED_FIELDS):
            yield str(payment.pk)


def refunds_equal_the_facts() -> Iterator[str]:
    """A payment's refunds are those that its facts tell of."""
    told = Fact.objects.filter(
        payment=OuterRef("pk"),
        kind__in=[*GIVE_BACK, FactKind.REFUND_FAILED],
        refund_id__isnull=False,
    )
    kept = Refund.objects.filter(payment=OuterRef("pk"))
    payments = Payment.objects.filter(Exists(told) | Exists(kept)).only("pk")
    for payment in payments.prefetch_related("facts", "refunds").iterator(chunk_size=_BATCH):
        due = {
            (
                told.refund_id,
                told.amount,
                told.currency,
                RefundStatus.FAILED if told.failed else RefundStatus.SUCCEEDED,
            )
            for told in fold(payment.facts.all()).refunds
        }
        if due != {_content(refund) for refund in payment.refunds.all()}:
            yield str(payment.pk)


def _content(refund: Refund) -> tuple[Any, ...]:
    return (refund.external_refund_id, refund.amount, refund.currency, RefundStatus(refund.status))


def refunded_at_most_what_was_paid() -> Iterator[str]:
    """No payment gave back more than it brought."""
    return broken_by("SELECT id FROM billing_payment WHERE amount_refunded > amount")


def applied_means_one_live_grant() -> Iterator[str]:
    """A payment is marked as applied if, and only if, it has a live grant: one, and of the
    subscription and order that the payment names."""
    return broken_by(
        """
        SELECT payment.id FROM billing_payment AS payment
        LEFT JOIN (
            SELECT payment_id, count(*) AS number,
                min(subscription_id::text)::uuid AS subscription_id,
                min(order_id::text)::uuid AS order_id
            FROM billing_grant WHERE revoked_at IS NULL GROUP BY payment_id
        ) AS live ON live.payment_id = payment.id
        WHERE coalesce(live.number, 0) > 1
            OR (payment.subscription_applied_at IS NOT NULL) <> (live.number IS NOT NULL)
            OR live.number IS NOT NULL AND (
                live.subscription_id IS DISTINCT FROM payment.subscription_id
                OR live.order_id IS DISTINCT FROM payment.order_id
            )
        """
    )


def live_grant_is_due() -> Iterator[str]:
    """A payment that is not worth what it bought (any more) has no live grant, unless a person is
    asked to take it back, or was asked and left it."""
    return broken_by(
        f"""
        SELECT payment.id FROM billing_payment AS payment
        WHERE EXISTS (
            SELECT FROM billing_grant AS live
            WHERE live.payment_id = payment.id AND live.revoked_at IS NULL
        ) AND (payment.status <> %(succeeded)s OR {_STAFF_REVOKED})
        AND NOT EXISTS (
            SELECT FROM billing_fact AS fact
            JOIN webhooks_webhookevent AS event ON event.id = fact.event_id
            WHERE fact.payment_id = payment.id AND event.error_code = ANY(%(stands_against_it)s)
            AND (
                event.review IN (%(open)s, %(dismissed)s)
                OR event.review = %(resolved)s AND EXISTS (
                    SELECT FROM webhooks_auditentry AS kept
                    WHERE kept.event_id = event.id AND kept.action = 'review_kept'
                )
            )
        )
        """,  # noqa: S608 (our own words only)
        **_DECISIONS,
        succeeded=PaymentStatus.SUCCEEDED,
        stands_against_it=_TAKING_BACK_STOPPED,
        open=ReviewState.OPEN,
        dismissed=ReviewState.DISMISSED,
        resolved=ReviewState.RESOLVED,
    )


def succeeded_is_accounted_for() -> Iterator[str]:
    """A payment that succeeded is applied, tried again, parked, in review, dismissed by a person or
    revoked by one: never none of these."""
    return broken_by(
        f"""
        SELECT payment.id FROM billing_payment AS payment
        WHERE payment.status = %(succeeded)s
        AND NOT EXISTS (
            SELECT FROM billing_grant AS live
            WHERE live.payment_id = payment.id AND live.revoked_at IS NULL
        ) AND NOT EXISTS (
            SELECT FROM billing_fact AS fact
            JOIN webhooks_webhookevent AS event ON event.id = fact.event_id
            WHERE fact.payment_id = payment.id AND (
                event.status IN (%(received)s, %(validated)s, %(retryable)s)
                OR event.review = %(open)s
                OR event.review = %(dismissed)s AND event.status = %(final)s
            )
        ) AND NOT {_STAFF_REVOKED}
        """,  # noqa: S608 (our own words only)
        **_DECISIONS,
        received=_received,
        validated=_validated,
        retryable=_retryable,
        final=EventStatus.FAILED_FINAL,
        open=ReviewState.OPEN,
        dismissed=ReviewState.DISMISSED,
        succeeded=PaymentStatus.SUCCEEDED,
    )


def payment_goes_by_its_own_name() -> Iterator[str]:
    """A payment's own name is among the names by which it is found."""
    return broken_by(
        """
        SELECT payment.id FROM billing_payment AS payment
        WHERE NOT EXISTS (
            SELECT FROM billing_paymentalias AS alias
            WHERE alias.system = payment.provider
                AND alias.external_id = payment.external_payment_id
                AND alias.payment_id = payment.id
        )
        """
    )


RULES = (
    payment_equals_its_facts,
    refunds_equal_the_facts,
    refunded_at_most_what_was_paid,
    applied_means_one_live_grant,
    live_grant_is_due,
    succeeded_is_accounted_for,
    payment_goes_by_its_own_name,
)
