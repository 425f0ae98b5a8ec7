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

    def __str__(self) -> str:
        return f"{self.rule}: {' '.join(self.statements[0].split())[:60]}"


def run(*statements: str) -> None:
    with connection.cursor() as cursor:
        # A table with checks that wait for the end of the transaction cannot be altered.
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
        for statement in statements:
            cursor.execute(statement)
            assert cursor.rowcount != 0, f"nothing was broken by {statement}"


def _break(rule: str, *statements: str, also: Any = ()) -> Break:
    return Break(rule, statements, frozenset(also))


def _past_the_trigger(table: str, statement: str) -> tuple[str, ...]:
    return (
        f"ALTER TABLE {table} DISABLE TRIGGER append_only",
        statement,
        f"ALTER TABLE {table} ENABLE TRIGGER append_only",
    )


def _id(external_id: str) -> str:
    return f"(SELECT id FROM billing_payment WHERE external_payment_id = '{external_id}')"


_NEWEST_ON_ITS_WAY = f"""
    key = {_id("on-its-way")}
    AND seq = (SELECT max(seq) FROM billing_outboxmessage WHERE key = {_id("on-its-way")})
"""
_GUARDS = "constraints_are_there_and_valid"

_DECISION = f"""
    INSERT INTO billing_fact (event_id, event_key, reading, payment_id, kind, received_at, live)
    VALUES (gen_random_uuid(), 'staff:x', 'STAFF_REVOKED', {_id("kept")}, 'STAFF_REVOKED', now(),
        true)
"""
_AUDIT = f"""
    INSERT INTO webhooks_auditentry (id, action, actor, reason, details, payment_id)
    VALUES (gen_random_uuid(), 'processing_succeeded', 'staff:anna', '', '{{}}', {_id("kept")})
"""

PAYMENTS = [
    _break(
        "payment_equals_its_facts",
        "UPDATE billing_payment SET amount = 991 WHERE external_payment_id = 'kept'",
    ),
    _break(
        "payment_equals_its_facts",
        "UPDATE billing_payment SET status = 'FAILED' WHERE external_payment_id = 'canceled'",
    ),
    _break(
        "refunds_equal_the_facts",
        "UPDATE billing_refund SET amount = 1 WHERE external_refund_id = 'r-1'",
    ),
    _break(
        "refunds_equal_the_facts", "DELETE FROM billing_refund WHERE external_refund_id = 'r-1'"
    ),
    _break(
        "refunded_at_most_what_was_paid",
        "UPDATE billing_payment SET amount_refunded = 991 WHERE external_payment_id = 'refunded'",
        also=["payment_equals_its_facts"],
    ),
    _break(
        "applied_means_one_live_grant",
        """
        UPDATE billing_payment SET subscription_applied_at = NULL
        WHERE external_payment_id = 'kept'
        """,
    ),
    _break(
        "applied_means_one_live_grant",
        """
        UPDATE billing_payment SET subscription_applied_at = now()
        WHERE external_payment_id = 'refunded'
        """,
    ),
    _break(
        "applied_means_one_live_grant",
        """
        DO $$ BEGIN EXECUTE 'ALTER TABLE billing_grant DROP CONSTRAINT ' || (
            SELECT conname FROM pg_constraint
            WHERE conrelid = 'billing_grant'::regclass AND contype = 'u'
        ); END $$
        """,
        f"""
        INSERT INTO billing_grant (id, payment_id, kind, subscription_id, plan_id, starts_at, ends_at)
        SELECT gen_random_uuid(), payment_id, kind, subscription_id, plan_id, starts_at, starts_at
        FROM billing_grant WHERE payment_id = {_id("kept")}
        """,
        also=[_GUARDS],
    ),
    _break("live_grant_is_due", _DECISION, _AUDIT),
    _break(
        "succeeded_is_accounted_for",
        "UPDATE webhooks_webhookevent SET review = NULL WHERE external_payment_id = 'too-little'",
    ),
    _break(
        "succeeded_is_accounted_for",
        """
        UPDATE webhooks_webhookevent SET status = 'IGNORED', next_attempt_at = NULL
        WHERE external_payment_id = 'parked'
        """,
    ),
    _break(
        "payment_goes_by_its_own_name",
        "DELETE FROM billing_paymentalias WHERE external_id = 'kept'",
    ),
    _break(
        "payment_goes_by_its_own_name",
        f"UPDATE billing_paymentalias SET payment_id = {_id('behind')} WHERE external_id = 'kept'",
    ),
]
EVENTS = [
    _break(
        "processed_success_was_applied",
        """
        UPDATE webhooks_webhookevent SET status = 'PROCESSED'
        WHERE external_payment_id = 'too-little'
        """,
    ),
    _break(
        "applied_payment_has_its_event",
        "UPDATE webhooks_webhookevent SET status = 'IGNORED' WHERE external_payment_id = 'kept'",
    ),
    _break(
        "attempts_are_bounded",
        """
        UPDATE webhooks_webhookevent SET attempts = 10, error_code = 'PROCESSING_ERROR'
        WHERE external_payment_id = 'parked'
        """,
    ),
    _break(
        "attempts_are_bounded",
        "UPDATE billing_outboxdelivery SET attempts = 12 WHERE status = 'PENDING'",
    ),
    _break(
        "no_event_is_stuck",
        """
        UPDATE webhooks_webhookevent SET next_attempt_at = now() - interval '61 minutes'
        WHERE external_payment_id = 'parked'
        """,
    ),
    _break(
        "payload_matches_its_hash",
        r"""
        UPDATE webhooks_webhookevent SET raw_body = raw_body || '\x20'
        WHERE external_payment_id = 'kept'
        """,
    ),
    _break(
        "payload_matches_its_hash",
        "UPDATE webhooks_webhookevent SET raw_body = NULL WHERE external_payment_id = 'kept'",
    ),
]
PURCHASES = [
    _break(
        "subscription_ends_with_its_last_grant",
        """
        UPDATE subscriptions_subscription SET current_period_end = current_period_end + interval '1 s'
        """,
    ),
    _break(
        "subscription_is_active_while_paid",
        "UPDATE subscriptions_subscription SET status = 'INACTIVE'",
    ),
    _break(
        "subscription_is_active_while_paid",
        """
        INSERT INTO subscriptions_subscription (id, user_id, status, current_period_end)
        SELECT gen_random_uuid(), id, 'ACTIVE', now() - interval '11 minutes'
        FROM subscriptions_user WHERE email = 'idle@example.com'
        """,
    ),
    _break(
        "grants_do_not_overlap",
        f"""
        UPDATE billing_grant SET ends_at = ends_at + interval '1 s'
        WHERE payment_id = {_id("kept")}
        """,
    ),
    _break(
        "paid_order_has_one_live_grant",
        "UPDATE billing_order SET status = 'CANCELED' WHERE status = 'PAID' AND buys = 'BOOKING'",
    ),
    _break(
        "paid_order_has_one_live_grant",
        """
        UPDATE billing_order SET status = 'PAID', paid_at = now()
        WHERE status = 'PENDING' AND buys = 'SUBSCRIPTION'
        """,
    ),
    _break(
        "confirmed_booking_has_a_live_grant",
        "UPDATE billing_booking SET status = 'CANCELED' WHERE status = 'CONFIRMED'",
    ),
    _break(
        "confirmed_booking_has_a_live_grant",
        """
        UPDATE billing_booking SET status = 'CONFIRMED', paid_at = now() WHERE status = 'PENDING'
        """,
    ),
]
WALLETS = [
    _break("balance_is_the_sum_of_entries", "UPDATE billing_wallet SET balance = balance + 1"),
    _break(
        "entries_say_the_balance_after_them",
        *_past_the_trigger(
            "billing_walletentry",
            "UPDATE billing_walletentry SET balance_after = balance_after + 1 WHERE kind = 'MANUAL'",
        ),
    ),
    _break(
        "wallet_covers_what_is_reserved",
        "ALTER TABLE billing_wallet DROP CONSTRAINT wallet_reserved_is_covered",
        "UPDATE billing_wallet SET reserved = balance + 1",
        also=["reserved_is_the_sum_of_reservations", _GUARDS],
    ),
    _break(
        "reserved_is_the_sum_of_reservations", "UPDATE billing_wallet SET reserved = reserved + 1"
    ),
    _break(
        "reservation_is_spent_once",
        "UPDATE billing_reservation SET status = 'COMMITTED' WHERE status = 'RELEASED'",
    ),
    _break(
        "topup_is_in_the_books",
        "UPDATE billing_grant SET amount = amount + 1 WHERE kind = 'WALLET_TOPUP'",
    ),
    _break(
        "spending_is_in_the_books",
        *_past_the_trigger(
            "billing_walletentry",
            "UPDATE billing_walletentry SET kind = 'MANUAL' WHERE kind = 'SPENDING_REFUNDED'",
        ),
    ),
]
AUDITS = [
    _break(
        "manual_action_has_an_actor",
        *_past_the_trigger(
            "webhooks_auditentry",
            "UPDATE webhooks_auditentry SET actor = 'recovery' WHERE action = 'review_kept'",
        ),
    ),
    _break("decision_has_an_actor", _DECISION, also=["live_grant_is_due"]),
    *(
        _break(
            "decision_has_an_actor",
            *_past_the_trigger(
                "webhooks_auditentry",
                f"UPDATE webhooks_auditentry SET action = 'x' WHERE action = '{action}'",
            ),
        )
        for action in ("review_dismissed", "message_skipped")
    ),
    _break(
        "decision_has_an_actor",
        *_past_the_trigger(
            "webhooks_auditentry",
            """
            UPDATE webhooks_auditentry SET actor = 'recovery'
            WHERE action = 'payment_revoked' AND actor LIKE 'staff:%'
            """,
        ),
    ),
    *(
        _break(
            "grant_has_its_audit_rows",
            *_past_the_trigger(
                "webhooks_auditentry",
                f"""
                UPDATE webhooks_auditentry SET action = 'x'
                WHERE action = '{action}' AND actor NOT LIKE 'staff:%'
                """,
            ),
        )
        for action in ("payment_applied", "payment_revoked")
    ),
]
AMOUNTS = [
    _break("amounts_are_sound", "UPDATE billing_order SET amount = 500.001"),
    _break(
        "amounts_are_sound",
        "UPDATE billing_order SET amount = 500.5, currency = 'KRW' WHERE status = 'PENDING'",
    ),
    _break(
        "amounts_are_sound",
        "ALTER TABLE billing_order DROP CONSTRAINT order_amount_positive_and_finite",
        "UPDATE billing_order SET amount = 'NaN' WHERE status = 'PENDING'",
        also=[_GUARDS],
    ),
    _break(
        "amounts_are_sound",
        "ALTER TABLE billing_payment DROP CONSTRAINT payment_amount_refunded_finite",
        "UPDATE billing_payment SET amount_refunded = -1 WHERE external_payment_id = 'kept'",
        also=[_GUARDS, "payment_equals_its_facts"],
    ),
]
OUTBOX = [
    _break(
        "messages_are_numbered_without_a_gap",
        f"UPDATE billing_outboxdelivery SET seq = seq + 1 WHERE {_NEWEST_ON_ITS_WAY}",
        f"UPDATE billing_outboxmessage SET seq = seq + 1 WHERE {_NEWEST_ON_ITS_WAY}",
    ),
    _break(
        "message_goes_to_the_read_model",
        f"DELETE FROM billing_outboxdelivery WHERE {_NEWEST_ON_ITS_WAY}",
    ),
    _break(
        "message_goes_to_the_read_model",
        f"UPDATE billing_outboxdelivery SET seq = seq + 1 WHERE {_NEWEST_ON_ITS_WAY}",
    ),
    _break(
        "deliveries_are_in_order",
        f"""
        UPDATE billing_outboxdelivery SET status = 'PENDING', next_attempt_at = now()
        WHERE key = {_id("kept")} AND seq = 1
        """,
    ),
    _break(
        "view_is_not_ahead_of_the_outbox",
        f"UPDATE billing_paymentview SET seq = seq + 1 WHERE payment_id = {_id('kept')}",
    ),
    _break(
        "view_shows_the_newest_message",
        f"UPDATE billing_paymentview SET status = 'FAILED' WHERE payment_id = {_id('kept')}",
    ),
    _break(
        "view_shows_the_newest_message",
        f"DELETE FROM billing_paymentview WHERE payment_id = {_id('kept')}",
    ),
]
SCHEMA = [
    _break(_GUARDS, "ALTER TABLE billing_order DROP CONSTRAINT order_currency_code"),
    _break(
        _GUARDS,
        "ALTER TABLE billing_order DROP CONSTRAINT order_currency_code",
        """
        ALTER TABLE billing_order ADD CONSTRAINT order_currency_code
            CHECK (currency ~ '^[A-Z]{3}$') NOT VALID
        """,
    ),
    _break(_GUARDS, "DROP INDEX event_unique_by_event_id"),
    _break(
        _GUARDS,
        """
        DO $$ BEGIN EXECUTE 'ALTER TABLE billing_fact DROP CONSTRAINT ' || (
            SELECT conname FROM pg_constraint
            WHERE conrelid = 'billing_fact'::regclass AND contype = 'f'
        ); END $$
        """,
    ),
    _break(
        _GUARDS,
        """
        DO $$ BEGIN EXECUTE 'ALTER TABLE billing_reservation DROP CONSTRAINT ' || (
            SELECT conname FROM pg_constraint
            WHERE conrelid = 'billing_reservation'::regclass AND contype = 'u'
        ); END $$
        """,
    ),
    _break("indexes_are_there_and_valid", "DROP INDEX event_due"),
    _break(
        "indexes_are_there_and_valid",
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'event_due'::regclass",
    ),
    *(
        _break("append_only_triggers_are_on", f"ALTER TABLE {table} DISABLE TRIGGER {trigger}")
        for table, trigger in (
            ("billing_fact", "append_only"),
            ("billing_fact", "append_only_but_for_redaction"),
            ("billing_walletentry", "append_only"),
            ("webhooks_auditentry", "append_only"),
        )
    ),
    _break("append_only_triggers_are_on", "DROP TRIGGER append_only ON webhooks_auditentry"),
]
ALL = [*PAYMENTS, *EVENTS, *PURCHASES, *WALLETS, *AUDITS, *AMOUNTS, *OUTBOX, *SCHEMA]
