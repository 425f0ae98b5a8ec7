"""What others were told: numbered without a gap, in order, and shown as it was told."""

from __future__ import annotations

from collections.abc import Iterator

from billing.models import DeliveryStatus
from billing.outbox.targets import READ_MODEL
from webhooks.invariants.querying import broken_by


def messages_are_numbered_without_a_gap() -> Iterator[str]:
    """The messages about one payment or subscription are numbered 1, 2, 3, …"""
    return broken_by(
        """
        SELECT key FROM billing_outboxmessage GROUP BY key
        HAVING min(seq) <> 1 OR max(seq) <> count(*) OR count(DISTINCT seq) <> count(*)
        """
    )


def message_goes_to_the_read_model() -> Iterator[str]:
    """Every message is on its way to the read model; to other targets only if they were configured
    when it was written. A delivery has its message's key and number."""
    return broken_by(
        """
        SELECT 'message ' || message.id FROM billing_outboxmessage AS message
        WHERE NOT EXISTS (
            SELECT FROM billing_outboxdelivery AS delivery
            WHERE delivery.message_id = message.id AND delivery.target = %(read_model)s
        )
        UNION ALL
        SELECT 'delivery ' || delivery.id FROM billing_outboxdelivery AS delivery
        JOIN billing_outboxmessage AS message ON message.id = delivery.message_id
        WHERE (delivery.key, delivery.seq) <> (message.key, message.seq)
        """,
        read_model=READ_MODEL,
    )


def deliveries_are_in_order() -> Iterator[str]:
    """A target gets no message before the earlier ones about the same payment, unless a person
    skipped one."""
    return broken_by(
        """
        SELECT delivery.id FROM (
            SELECT target, key, min(seq) AS seq FROM billing_outboxdelivery
            WHERE status IN (%(pending)s, %(dead)s) GROUP BY target, key
        ) AS first_in_the_way
        JOIN billing_outboxdelivery AS delivery USING (target, key)
        WHERE delivery.status = %(delivered)s AND delivery.seq > first_in_the_way.seq
        """,
        pending=DeliveryStatus.PENDING,
        dead=DeliveryStatus.DEAD,
        delivered=DeliveryStatus.DELIVERED,
    )


def view_is_not_ahead_of_the_outbox() -> Iterator[str]:
    """The read model shows nothing that was not told."""
    return broken_by(
        """
        SELECT payment_id FROM billing_paymentview AS view
        WHERE seq > 0 AND NOT EXISTS (
            SELECT FROM billing_outboxmessage AS message
            WHERE message.key = view.payment_id AND message.seq = view.seq
        )
        """
    )


def view_shows_the_newest_message() -> Iterator[str]:
    """Where nothing is on its way any more, the read model shows what the newest message about the
    payment says, unless something newer was told from elsewhere."""
    return broken_by(
        """
        SELECT told.key FROM (
            SELECT DISTINCT ON (message.key) message.key, message.seq, message.created_at,
                message.data -> 'payment' AS payment, delivery.status
            FROM billing_outboxmessage AS message
            JOIN billing_outboxdelivery AS delivery
                ON delivery.message_id = message.id AND delivery.target = %(read_model)s
            WHERE message.data ? 'payment'
            ORDER BY message.key DESC, message.seq DESC
        ) AS told
        LEFT JOIN billing_paymentview AS view ON view.payment_id = told.key
        LEFT JOIN LATERAL jsonb_to_record(told.payment) AS said (
            provider text, external_payment_id text, provider_txn_id text, merchant_uid text,
            user_id uuid, status text, amount numeric, currency text, amount_refunded numeric,
            paid_at timestamptz, applied_at timestamptz, created_at timestamptz
        ) ON true
        WHERE told.status = %(delivered)s AND (
            view.payment_id IS NULL OR view.seq < told.seq
            OR view.seq = told.seq AND view.told_at = told.created_at AND (
                view.provider, view.external_payment_id, view.provider_txn_id, view.merchant_uid,
                view.user_id, view.status, view.amount, view.currency, view.amount_refunded,
                view.paid_at, view.applied_at, view.created_at
            ) IS DISTINCT FROM (
                said.provider, said.external_payment_id, said.provider_txn_id, said.merchant_uid,
                said.user_id, said.status, said.amount, said.currency, said.amount_refunded,
                said.paid_at, said.applied_at, said.created_at
            )
        )
        """,
        read_model=READ_MODEL,
        delivered=DeliveryStatus.DELIVERED,
    )


RULES = (
    messages_are_numbered_without_a_gap,
    message_goes_to_the_read_model,
    deliveries_are_in_order,
    view_is_not_ahead_of_the_outbox,
    view_shows_the_newest_message,
)
