"""As breaking.py: the books, what was written down and told, and the guards themselves."""

from __future__ import annotations

from webhooks.tests.breaking import DECISION, GUARDS, breaks, id_of, past_the_trigger

_NEWEST_ON_ITS_WAY = f"""
    key = {id_of("on-its-way")}
    AND seq = (SELECT max(seq) FROM billing_outboxmessage WHERE key = {id_of("on-its-way")})
"""
WALLETS = [
    breaks("balance_is_the_sum_of_entries", "UPDATE billing_wallet SET balance = balance + 1"),
    breaks(
        "entries_say_the_balance_after_them",
        *past_the_trigger(
            "billing_walletentry",
            """
            UPDATE billing_walletentry SET balance_after = balance_after + 1 WHERE kind = 'MANUAL'
            """,
        ),
    ),
    breaks(
        "wallet_covers_what_is_reserved",
        "ALTER TABLE billing_wallet DROP CONSTRAINT wallet_reserved_is_covered",
        "UPDATE billing_wallet SET reserved = balance + 1",
        also=["reserved_is_the_sum_of_reservations", GUARDS],
    ),
    breaks(
        "reserved_is_the_sum_of_reservations", "UPDATE billing_wallet SET reserved = reserved + 1"
    ),
    breaks(
        "reservation_is_spent_once",
        "UPDATE billing_reservation SET status = 'COMMITTED' WHERE status = 'RELEASED'",
    ),
    breaks(
        "topup_is_in_the_books",
        "UPDATE billing_grant SET amount = amount + 1 WHERE kind = 'WALLET_TOPUP'",
    ),
    breaks(
        "spending_is_in_the_books",
        *past_the_trigger(
            "billing_walletentry",
            "UPDATE billing_walletentry SET kind = 'MANUAL' WHERE kind = 'SPENDING_REFUNDED'",
        ),
    ),
]
AUDITS = [
    breaks(
        "manual_action_has_an_actor",
        *past_the_trigger(
            "webhooks_auditentry",
            "UPDATE webhooks_auditentry SET actor = 'recovery' WHERE action = 'review_kept'",
        ),
    ),
    breaks("decision_has_an_actor", DECISION, also=["live_grant_is_due"]),
    *(
        breaks(
            "decision_has_an_actor",
            *past_the_trigger(
                "webhooks_auditentry",
                f"UPDATE webhooks_auditentry SET action = 'x' WHERE action = '{action}'",
            ),
        )
        for action in ("review_dismissed", "message_skipped")
    ),
    breaks(
        "decision_has_an_actor",
        *past_the_trigger(
            "webhooks_auditentry",
            """
            UPDATE webhooks_auditentry SET actor = 'recovery'
            WHERE action = 'payment_revoked' AND actor LIKE 'staff:%'
            """,
        ),
    ),
    *(
        breaks(
            "grant_has_its_audit_rows",
            *past_the_trigger(
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
    breaks("amounts_are_sound", "UPDATE billing_order SET amount = 500.001"),
    breaks(
        "amounts_are_sound",
        "UPDATE billing_order SET amount = 500.5, currency = 'KRW' WHERE status = 'PENDING'",
    ),
    breaks(
        "amounts_are_sound",
        "ALTER TABLE billing_order DROP CONSTRAINT order_amount_positive_and_finite",
        "UPDATE billing_order SET amount = 'NaN' WHERE status = 'PENDING'",
        also=[GUARDS],
    ),
    breaks(
        "amounts_are_sound",
        "ALTER TABLE billing_payment DROP CONSTRAINT payment_amount_refunded_finite",
        "UPDATE billing_payment SET amount_refunded = -1 WHERE external_payment_id = 'kept'",
        also=[GUARDS, "payment_equals_its_facts"],
    ),
]
OUTBOX = [
    breaks(
        "messages_are_numbered_without_a_gap",
        f"UPDATE billing_outboxdelivery SET seq = seq + 1 WHERE {_NEWEST_ON_ITS_WAY}",
        f"UPDATE billing_outboxmessage SET seq = seq + 1 WHERE {_NEWEST_ON_ITS_WAY}",
    ),
    breaks(
        "message_goes_to_the_read_model",
        f"DELETE FROM billing_outboxdelivery WHERE {_NEWEST_ON_ITS_WAY}",
    ),
    breaks(
        "message_goes_to_the_read_model",
        f"UPDATE billing_outboxdelivery SET seq = seq + 1 WHERE {_NEWEST_ON_ITS_WAY}",
    ),
    breaks(
        "deliveries_are_in_order",
        f"""
        UPDATE billing_outboxdelivery SET status = 'PENDING', next_attempt_at = now()
        WHERE key = {id_of("kept")} AND seq = 1
        """,
    ),
    breaks(
        "view_is_not_ahead_of_the_outbox",
        f"UPDATE billing_paymentview SET seq = seq + 1 WHERE payment_id = {id_of('kept')}",
    ),
    breaks(
        "view_shows_the_newest_message",
        f"UPDATE billing_paymentview SET status = 'FAILED' WHERE payment_id = {id_of('kept')}",
    ),
    breaks(
        "view_shows_the_newest_message",
        f"DELETE FROM billing_paymentview WHERE payment_id = {id_of('kept')}",
    ),
]
SCHEMA = [
    breaks(GUARDS, "ALTER TABLE billing_order DROP CONSTRAINT order_currency_code"),
    breaks(
        GUARDS,
        "ALTER TABLE billing_order DROP CONSTRAINT order_currency_code",
        """
        ALTER TABLE billing_order ADD CONSTRAINT order_currency_code
            CHECK (currency ~ '^[A-Z]{3}$') NOT VALID
        """,
    ),
    breaks(GUARDS, "DROP INDEX event_unique_by_event_id"),
    breaks(
        GUARDS,
        """
        DO $$ BEGIN EXECUTE 'ALTER TABLE billing_fact DROP CONSTRAINT ' || (
            SELECT conname FROM pg_constraint
            WHERE conrelid = 'billing_fact'::regclass AND contype = 'f'
        ); END $$
        """,
    ),
    breaks(
        GUARDS,
        """
        DO $$ BEGIN EXECUTE 'ALTER TABLE billing_reservation DROP CONSTRAINT ' || (
            SELECT conname FROM pg_constraint
            WHERE conrelid = 'billing_reservation'::regclass AND contype = 'u'
        ); END $$
        """,
    ),
    breaks("indexes_are_there_and_valid", "DROP INDEX event_due"),
    breaks(
        "indexes_are_there_and_valid",
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'event_due'::regclass",
    ),
    *(
        breaks("append_only_triggers_are_on", f"ALTER TABLE {table} DISABLE TRIGGER {trigger}")
        for table, trigger in (
            ("billing_fact", "append_only"),
            ("billing_fact", "append_only_but_for_redaction"),
            ("billing_walletentry", "append_only"),
            ("webhooks_auditentry", "append_only"),
        )
    ),
    breaks("append_only_triggers_are_on", "DROP TRIGGER append_only ON webhooks_auditentry"),
]
