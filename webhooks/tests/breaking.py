"""How each rule that must always hold is broken, in a database that `make_busy` made: by hand, past
all the code, and where the database itself would refuse, with its guard taken away first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import connection


@dataclass(frozen=True)
class Break:
    rule: str
    statements: tuple[str, ...]
    # What cannot but break along with it.
    also: frozenset[str] = frozenset()


def run(*statements: str) -> None:
    with connection.cursor() as cursor:
        # A table with checks that wait for the end of the transaction cannot be altered.
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for statement in statements:
            cursor.execute(statement)
            assert cursor.rowcount != 0, f"nothing was broken by {statement}"


def breaks(rule: str, *statements: str, also: Any = ()) -> Break:
    return Break(rule, statements, frozenset(also))


def past_the_trigger(table: str, statement: str) -> tuple[str, ...]:
    return (
        f"ALTER TABLE {table} DISABLE TRIGGER append_only",
        statement,
        f"ALTER TABLE {table} ENABLE TRIGGER append_only",
    )


def id_of(external_id: str) -> str:
    return f"(SELECT id FROM billing_payment WHERE external_payment_id = '{external_id}')"


GUARDS = "constraints_are_there_and_valid"

DECISION = f"""
    INSERT INTO billing_fact (event_id, event_key, reading, payment_id, kind, received_at, live)
    VALUES (gen_random_uuid(), 'staff:x', 'STAFF_REVOKED', {id_of("kept")}, 'STAFF_REVOKED', now(),
        true)
"""
_AUDIT = f"""
    INSERT INTO webhooks_auditentry (id, action, actor, reason, details, payment_id)
    VALUES (gen_random_uuid(), 'processing_succeeded', 'staff:anna', '', '{{}}', {id_of("kept")})
"""

PAYMENTS = [
    breaks(
        "payment_equals_its_facts",
        "UPDATE billing_payment SET amount = 991 WHERE external_payment_id = 'kept'",
    ),
    breaks(
        "payment_equals_its_facts",
        "UPDATE billing_payment SET status = 'FAILED' WHERE external_payment_id = 'canceled'",
    ),
    breaks(
        "refunds_equal_the_facts",
        "UPDATE billing_refund SET amount = 1 WHERE external_refund_id = 'r-1'",
    ),
    breaks(
        "refunds_equal_the_facts", "DELETE FROM billing_refund WHERE external_refund_id = 'r-1'"
    ),
    breaks(
        "refunded_at_most_what_was_paid",
        "UPDATE billing_payment SET amount_refunded = 991 WHERE external_payment_id = 'refunded'",
        also=["payment_equals_its_facts"],
    ),
    breaks(
        "applied_means_one_live_grant",
        """
        UPDATE billing_payment SET subscription_applied_at = NULL
        WHERE external_payment_id = 'kept'
        """,
    ),
    breaks(
        "applied_means_one_live_grant",
        """
        UPDATE billing_payment SET subscription_applied_at = now()
        WHERE external_payment_id = 'refunded'
        """,
    ),
    breaks(
        "applied_means_one_live_grant",
        """
        DO $$ BEGIN EXECUTE 'ALTER TABLE billing_grant DROP CONSTRAINT ' || (
            SELECT conname FROM pg_constraint
            WHERE conrelid = 'billing_grant'::regclass AND contype = 'u'
        ); END $$
        """,
        f"""
        INSERT INTO billing_grant
            (id, payment_id, kind, subscription_id, plan_id, starts_at, ends_at)
        SELECT gen_random_uuid(), payment_id, kind, subscription_id, plan_id, starts_at, starts_at
        FROM billing_grant WHERE payment_id = {id_of("kept")}
        """,
        also=[GUARDS],
    ),
    breaks("live_grant_is_due", DECISION, _AUDIT),
    breaks(
        "succeeded_is_accounted_for",
        "UPDATE webhooks_webhookevent SET review = NULL WHERE external_payment_id = 'too-little'",
    ),
    breaks(
        "succeeded_is_accounted_for",
        """
        UPDATE webhooks_webhookevent SET status = 'IGNORED', next_attempt_at = NULL
        WHERE external_payment_id = 'parked'
        """,
    ),
    breaks(
        "payment_goes_by_its_own_name",
        "DELETE FROM billing_paymentalias WHERE external_id = 'kept'",
    ),
    breaks(
        "payment_goes_by_its_own_name",
        f"""
        UPDATE billing_paymentalias SET payment_id = {id_of("behind")} WHERE external_id = 'kept'
        """,
    ),
]
EVENTS = [
    breaks(
        "processed_success_was_applied",
        """
        UPDATE webhooks_webhookevent SET status = 'PROCESSED'
        WHERE external_payment_id = 'too-little'
        """,
    ),
    breaks(
        "applied_payment_has_its_event",
        "UPDATE webhooks_webhookevent SET status = 'IGNORED' WHERE external_payment_id = 'kept'",
    ),
    breaks(
        "attempts_are_bounded",
        """
        UPDATE webhooks_webhookevent SET attempts = 10, error_code = 'PROCESSING_ERROR'
        WHERE external_payment_id = 'parked'
        """,
    ),
    breaks(
        "attempts_are_bounded",
        "UPDATE billing_outboxdelivery SET attempts = 12 WHERE status = 'PENDING'",
    ),
    breaks(
        "no_event_is_stuck",
        """
        UPDATE webhooks_webhookevent SET next_attempt_at = now() - interval '61 minutes'
        WHERE external_payment_id = 'parked'
        """,
    ),
    breaks(
        "payload_matches_its_hash",
        r"""
        UPDATE webhooks_webhookevent SET raw_body = raw_body || '\x20'
        WHERE external_payment_id = 'kept'
        """,
    ),
    breaks(
        "payload_matches_its_hash",
        "UPDATE webhooks_webhookevent SET raw_body = NULL WHERE external_payment_id = 'kept'",
    ),
]
PURCHASES = [
    breaks(
        "subscription_ends_with_its_last_grant",
        """
        UPDATE subscriptions_subscription
        SET current_period_end = current_period_end + interval '1 s'
        """,
    ),
    breaks(
        "subscription_is_active_while_paid",
        "UPDATE subscriptions_subscription SET status = 'INACTIVE'",
    ),
    breaks(
        "subscription_is_active_while_paid",
        """
        INSERT INTO subscriptions_subscription (id, user_id, status, current_period_end)
        SELECT gen_random_uuid(), id, 'ACTIVE', now() - interval '11 minutes'
        FROM subscriptions_user WHERE email = 'idle@example.com'
        """,
    ),
    breaks(
        "grants_do_not_overlap",
        f"""
        UPDATE billing_grant SET ends_at = ends_at + interval '1 s'
        WHERE payment_id = {id_of("kept")}
        """,
    ),
    breaks(
        "paid_order_has_one_live_grant",
        "UPDATE billing_order SET status = 'CANCELED' WHERE status = 'PAID' AND buys = 'BOOKING'",
    ),
    breaks(
        "paid_order_has_one_live_grant",
        """
        UPDATE billing_order SET status = 'PAID', paid_at = now()
        WHERE status = 'PENDING' AND buys = 'SUBSCRIPTION'
        """,
    ),
    breaks(
        "confirmed_booking_has_a_live_grant",
        "UPDATE billing_booking SET status = 'CANCELED' WHERE status = 'CONFIRMED'",
    ),
    breaks(
        "confirmed_booking_has_a_live_grant",
        """
        UPDATE billing_booking SET status = 'CONFIRMED', paid_at = now() WHERE status = 'PENDING'
        """,
    ),
]
