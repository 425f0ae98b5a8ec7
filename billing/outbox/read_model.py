"""The read model: what the API shows of payments, made from the messages alone.

A message may come twice, late, or after newer ones; none takes a payment's row backwards.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from django.db import connection, transaction

from billing.models import OutboxMessage
from billing.outbox.envelopes import Envelope

CONSUMER = "payment-view"
KEEP_PROCESSED_DAYS = 7
_CLEAN_BATCH = 5000

# One statement for any number of messages, of different payments. A row changes only for a
# message with a greater number. What comes from elsewhere has none: it needs a later time, and
# leaves the row its number. `again` lets a rebuild write over the very message that is in the row.
_PUT = """
    INSERT INTO billing_paymentview AS view (
        payment_id, seq, told_at, provider, external_payment_id, provider_txn_id, merchant_uid,
        user_id, status, amount, currency, amount_refunded, paid_at, applied_at, created_at
    )
    SELECT
        payment_id, coalesce(seq, 0), told_at, provider, external_payment_id, provider_txn_id,
        merchant_uid, user_id, status, amount, currency, amount_refunded, paid_at, applied_at,
        created_at
    FROM jsonb_to_recordset(%(rows)s::jsonb) AS told (
        payment_id uuid, seq integer, told_at timestamptz, provider text,
        external_payment_id text, provider_txn_id text, merchant_uid text, user_id uuid,
        status text, amount numeric, currency text, amount_refunded numeric,
        paid_at timestamptz, applied_at timestamptz, created_at timestamptz
    )
    ON CONFLICT (payment_id) DO UPDATE SET
        seq = greatest(view.seq, excluded.seq),
        told_at = greatest(view.told_at, excluded.told_at),
        provider = excluded.provider,
        external_payment_id = excluded.external_payment_id,
        provider_txn_id = excluded.provider_txn_id,
        merchant_uid = excluded.merchant_uid,
        user_id = excluded.user_id,
        status = excluded.status,
        amount = excluded.amount,
        currency = excluded.currency,
        amount_refunded = excluded.amount_refunded,
        paid_at = excluded.paid_at,
        applied_at = excluded.applied_at,
        created_at = excluded.created_at
    WHERE excluded.seq > view.seq
        OR excluded.seq = 0 AND excluded.told_at > view.told_at
        OR %(again)s AND excluded.seq = view.seq AND excluded.told_at >= view.told_at
"""


@transaction.atomic
def take(message: Envelope) -> bool:
    """Whether the message was new to this consumer. Should the same one come twice at once, the
    second waits for the first one's commit and then finds it known."""
    if not _mark(message):
        return False
    if "payment" in message.data:
        _put([message])
    return True


def put_again(messages: Iterable[Envelope]) -> None:
    """For a rebuild: the same rows by the same rules, whether or not they were taken before. The
    messages are of different payments."""
    _put(messages, again=True)


def newest_messages(*, batch: int) -> Iterator[list[Envelope]]:
    """The last message of each payment, in batches. Backwards, as the index on key and number
    then gives the newest of each key first."""
    messages = OutboxMessage.objects.filter(data__has_key="payment")
    newest = messages.order_by("-key", "-seq").distinct("key")
    found = list(newest[:batch])
    while found:
        yield [_envelope(message) for message in found]
        found = list(newest.filter(key__lt=found[-1].key)[:batch])


def delete_rows_without_message() -> int:
    """Rows that say they come from a message which is not in the outbox.

    The number is compared again on the row that is deleted: a newer message may arrive in between,
    and the outbox as this statement sees it may not have that one yet.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            """
            DELETE FROM billing_paymentview AS view
            USING (
                SELECT payment_id, seq FROM billing_paymentview AS known
                WHERE NOT EXISTS (
                    SELECT FROM billing_outboxmessage AS message
                    WHERE message.key = known.payment_id AND message.seq = known.seq
                )
            ) AS stray
            WHERE view.payment_id = stray.payment_id AND view.seq = stray.seq
            """
        )
        return int(cursor.rowcount)


def clean_processed(older_than_days: int = KEEP_PROCESSED_DAYS) -> int:
    """Forget which messages were taken so long ago that none of them comes again."""
    cleaned = 0
    while True:
        with connection.cursor() as cursor:
            cursor.execute(
                """
                DELETE FROM billing_processed_messages WHERE id IN (
                    SELECT id FROM billing_processed_messages
                    WHERE at < now() - make_interval(days => %s) ORDER BY at LIMIT %s
                )
                """,
                [older_than_days, _CLEAN_BATCH],
            )
            number = int(cursor.rowcount)
        cleaned += number
        if number < _CLEAN_BATCH:
            return cleaned


def _mark(message: Envelope) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO billing_processed_messages (consumer, message_id) VALUES (%s, %s)
            ON CONFLICT (consumer, message_id) DO NOTHING
            """,
            [CONSUMER, message.id],
        )
        return bool(cursor.rowcount == 1)


def _put(messages: Iterable[Envelope], *, again: bool = False) -> None:
    rows = json.dumps([_row(message) for message in messages])
    with connection.cursor() as cursor:
        cursor.execute(_PUT, {"rows": rows, "again": again})


def _row(message: Envelope) -> dict[str, Any]:
    told_at = message.timestamp.isoformat()
    return {**message.data["payment"], "seq": message.seq, "told_at": told_at}


def _envelope(message: OutboxMessage) -> Envelope:
    return Envelope(
        id=message.pk,
        type=message.type,
        key=message.key,
        seq=message.seq,
        idempotency_key=message.idempotency_key,
        timestamp=message.created_at,
        data=message.data,
    )
