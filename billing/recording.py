from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import connection
from django.db.models.functions import Now

from billing.facts import FactKind, PaymentFact
from billing.fold import Folded, fold
from billing.models import Fact, Payment, PaymentStatus
from subscriptions.ids import time_ordered_id

FOLDED_FIELDS = (
    "status",
    "amount",
    "currency",
    "amount_refunded",
    "email",
    "plan_code",
    "paid_at",
    "failed_at",
    "canceled_at",
)
_FACT_FIELDS = tuple(f.attname for f in Fact._meta.concrete_fields if not f.primary_key)
_PAYMENT_FIELDS = tuple(field.attname for field in Payment._meta.concrete_fields)


@dataclass(frozen=True)
class Source:
    """The event a fact came with. Billing does not know the inbox, only these of its fields."""

    provider: str
    event_id: UUID
    event_key: str
    received_at: datetime


@dataclass(frozen=True)
class Recorded:
    """The payment is locked. Its fields hold the fold's result; `stored` is what the row held.
    `now` and `txid` are the database's."""

    payment: Payment
    folded: Folded
    stored: dict[str, object]
    is_new: bool
    now: datetime
    txid: str

    @property
    def status_before(self) -> PaymentStatus | None:
        return None if self.is_new else PaymentStatus(str(self.stored["status"]))


def record(fact: PaymentFact, source: Source) -> Recorded:
    """Append the fact, find or create its payment under lock, fold."""
    row = _to_row(fact, source)
    alone = fold([row])
    payment, is_new, now, txid = _find_or_create_locked(fact, row, alone, source)
    stored = {name: getattr(payment, name) for name in (*FOLDED_FIELDS, "user_id")}
    folded = alone if is_new else fold(payment.facts.all())
    for name in FOLDED_FIELDS:
        setattr(payment, name, getattr(folded, name))
    return Recorded(payment, folded, stored, is_new, now, txid)


def retract(source: Source, *, but_not: str | None = None) -> bool:
    """The event, read again, no longer speaks of the payments it spoke of before, except of the
    one named. Tells whether one of them was applied: a person must look at that."""
    spoken_of = Fact.objects.filter(event_id=source.event_id).values("payment_id")
    payments = Payment.objects.filter(pk__in=spoken_of).exclude(external_payment_id=but_not or "")
    was_applied = False
    for payment in payments.order_by("pk").select_for_update():
        was_applied |= payment.subscription_applied_at is not None
        newest = payment.facts.filter(event_id=source.event_id).order_by("-pk").first()
        if newest is None or newest.kind == FactKind.RETRACTED:
            continue
        Fact.objects.create(
            payment=payment,
            event_id=source.event_id,
            event_key=source.event_key,
            reading=FactKind.RETRACTED,
            kind=FactKind.RETRACTED,
            received_at=source.received_at,
        )
        folded = fold(payment.facts.all())
        changed = {name: getattr(folded, name) for name in FOLDED_FIELDS}
        Payment.objects.filter(pk=payment.pk).update(**changed, updated_at=Now())
    return was_applied


def _to_row(fact: PaymentFact, source: Source) -> Fact:
    return Fact(
        event_id=source.event_id,
        event_key=source.event_key,
        # The same event read the same way again is the same fact.
        reading=hashlib.sha256(repr(fact).encode()).hexdigest(),
        kind=fact.kind,
        amount=fact.amount,
        currency=fact.currency,
        email=fact.email,
        plan_code=fact.plan_code,
        paid_at=fact.paid_at,
        occurred_at=fact.occurred_at,
        received_at=source.received_at,
        refund_id=fact.refund_id,
        amount_refunded=fact.amount_refunded,
        live=fact.live,
    )


def _find_or_create_locked(
    fact: PaymentFact, row: Fact, alone: Folded, source: Source
) -> tuple[Payment, bool, datetime, str]:
    """One round trip. The update on conflict is there for the payment's lock. An event that is read
    as it was read last adds nothing; its lock, which the caller holds, keeps that true."""
    folded_columns = ", ".join(FOLDED_FIELDS)
    folded_values = ", ".join(f"%(folded_{name})s" for name in FOLDED_FIELDS)
    fact_columns = ", ".join(_FACT_FIELDS)
    fact_values = ", ".join(
        "payment.id" if name == "payment_id" else f"%({name})s" for name in _FACT_FIELDS
    )
    payment_columns = ", ".join(f"payment.{name}" for name in _PAYMENT_FIELDS)
    # The names are the models' own; every value is a parameter.
    sql = f"""
        WITH payment AS (
            INSERT INTO billing_payment (id, provider, external_payment_id, {folded_columns})
            VALUES (%(payment)s, %(provider)s, %(external_payment_id)s, {folded_values})
            ON CONFLICT (provider, external_payment_id) DO UPDATE SET updated_at = now()
            RETURNING *, xmax = 0 AS is_new
        ), fact AS (
            INSERT INTO billing_fact ({fact_columns})
            SELECT {fact_values} FROM payment
            WHERE %(reading)s IS DISTINCT FROM (
                SELECT reading FROM billing_fact
                WHERE event_id = %(event_id)s ORDER BY id DESC LIMIT 1
            )
        )
        SELECT {payment_columns}, is_new, now(), pg_current_xact_id()::text FROM payment
    """  # noqa: S608
    params = {
        "payment": time_ordered_id(),
        "provider": source.provider,
        "external_payment_id": fact.external_payment_id,
        **{f"folded_{name}": getattr(alone, name) for name in FOLDED_FIELDS},
        **{name: getattr(row, name) for name in _FACT_FIELDS if name != "payment_id"},
    }
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        *values, is_new, now, txid = cursor.fetchone()
    return Payment.from_db(connection.alias, _PAYMENT_FIELDS, values), is_new, now, txid
