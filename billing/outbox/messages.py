"""What is told, and the one way to tell it: in the transaction of the change."""

from __future__ import annotations

import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID, uuid5

from django.db import connection, transaction

from billing.outbox.targets import target_names
from billing.outbox.waking import wake

_NAMESPACE = UUID("6f5c1c1e-6a0e-5d0b-9a39-74c1a7e0f0d1")


class MessageType(StrEnum):
    PROVIDER_CALLBACK_RECEIVED = "ProviderCallbackReceived"
    # From before there were messages; the upgrade wrote it.
    PAYMENT_IMPORTED = "PaymentImported"
    PAYMENT_INITIATED = "PaymentInitiated"
    PAYMENT_NAMED = "PaymentNamed"
    PAYMENT_PROCESSING = "PaymentProcessing"
    PAYMENT_SUCCEEDED = "PaymentSucceeded"
    PAYMENT_FAILED = "PaymentFailed"
    PAYMENT_CANCELED = "PaymentCanceled"
    PAYMENT_REFUNDED = "PaymentRefunded"
    PAYMENT_PARTIALLY_REFUNDED = "PaymentPartiallyRefunded"
    PAYMENT_LINKED = "PaymentLinked"
    SUBSCRIPTION_EXTENDED = "SubscriptionExtended"
    SUBSCRIPTION_SHORTENED = "SubscriptionShortened"
    SUBSCRIPTION_REVOKED = "SubscriptionRevoked"
    SUBSCRIPTION_REINSTATED = "SubscriptionReinstated"
    SUBSCRIPTION_CANCELED = "SubscriptionCanceled"
    SUBSCRIPTION_EXPIRED = "SubscriptionExpired"
    BOOKING_CONFIRMED = "BookingConfirmed"
    BOOKING_CANCELED = "BookingCanceled"
    WALLET_CREDITED = "WalletCredited"
    WALLET_DEBITED = "WalletDebited"
    RESERVATION_COMMITTED = "ReservationCommitted"
    RESERVATION_RELEASED = "ReservationReleased"


@dataclass(frozen=True)
class Message:
    """`key` is the payment it is about (or the subscription, where no payment is involved), `cause`
    whatever made it happen: together with the type they say the same thing for ever."""

    type: MessageType
    key: UUID
    cause: object
    data: dict[str, Any]

    @property
    def idempotency_key(self) -> str:
        return f"{self.type}:{self.key}:{self.cause}"

    @property
    def id(self) -> UUID:
        return uuid5(_NAMESPACE, self.idempotency_key)


def write(*messages: Message) -> None:
    """One statement. The caller holds the lock of the row that each key names, so that nobody else
    takes the same numbers; what was told before is not told again."""
    if not messages:
        return
    with connection.cursor() as cursor:
        cursor.execute(
            """
            WITH told AS (
                INSERT INTO billing_outboxmessage (id, key, seq, type, idempotency_key, data)
                SELECT
                    new.id, new.key,
                    row_number() OVER (PARTITION BY new.key ORDER BY new.place) + coalesce(
                        (SELECT max(seq) FROM billing_outboxmessage AS known
                         WHERE known.key = new.key), 0),
                    new.type, new.idempotency_key, new.data
                FROM unnest(
                    %(ids)s::uuid[], %(keys)s::uuid[], %(types)s::text[],
                    %(idempotency_keys)s::text[], %(data)s::jsonb[]
                ) WITH ORDINALITY AS new (id, key, type, idempotency_key, data, place)
                WHERE NOT EXISTS (
                    SELECT FROM billing_outboxmessage AS known WHERE known.id = new.id
                )
                ON CONFLICT (id) DO NOTHING
                RETURNING id, key, seq
            )
            INSERT INTO billing_outboxdelivery (message_id, target, key, seq)
            SELECT told.id, target, told.key, told.seq
            FROM told CROSS JOIN unnest(%(targets)s::text[]) AS target
            """,
            {
                "ids": [message.id for message in messages],
                "keys": [message.key for message in messages],
                "types": [str(message.type) for message in messages],
                "idempotency_keys": [message.idempotency_key for message in messages],
                "data": [json.dumps(message.data) for message in messages],
                "targets": target_names(),
            },
        )
    transaction.on_commit(wake, robust=True)
