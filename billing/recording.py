from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from billing.facts import PaymentFact
from billing.fold import Folded, fold
from billing.models import Fact, Payment, PaymentStatus
from subscriptions.ids import time_ordered_id

FOLDED_FIELDS = ("status", "amount", "currency", "paid_at", "failed_at", "canceled_at")


@dataclass(frozen=True)
class Source:
    """The event a fact came with. Billing does not know the inbox, only these of its fields."""

    provider: str
    event_id: UUID
    event_key: str
    received_at: datetime


@dataclass(frozen=True)
class Recorded:
    """The payment is locked. Its fields hold the fold's result; `status_before` is what they
    held. `now` and `txid` are the database's."""

    payment: Payment
    folded: Folded
    status_before: PaymentStatus | None
    stored: dict[str, object]
    now: datetime
    txid: str


def record(fact: PaymentFact, source: Source) -> Recorded:
    """Append the fact, find or create its payment under lock, fold."""
    row = _to_row(fact, source)
    alone = fold([row])
    payment = _find_or_create_locked(fact, row, alone, source)
    stored = {name: getattr(payment, name) for name in (*FOLDED_FIELDS, "user_id")}
    folded = alone if payment.created else fold(payment.facts.all())  # type: ignore[attr-defined]
    for name in FOLDED_FIELDS:
        setattr(payment, name, getattr(folded, name))
    return Recorded(
        payment=payment,
        folded=folded,
        status_before=None if payment.created else PaymentStatus(str(stored["status"])),  # type: ignore[attr-defined]
        stored=stored,
        now=payment.db_now,  # type: ignore[attr-defined]
        txid=payment.db_txid,  # type: ignore[attr-defined]
    )


def _to_row(fact: PaymentFact, source: Source) -> Fact:
    return Fact(
        event_id=source.event_id,
        event_key=source.event_key,
        kind=fact.kind,
        amount=fact.amount,
        currency=fact.currency,
        paid_at=fact.paid_at,
        occurred_at=fact.occurred_at,
        received_at=source.received_at,
        refund_id=fact.refund_id,
        amount_refunded=fact.amount_refunded,
        live=fact.live,
    )


def _find_or_create_locked(fact: PaymentFact, row: Fact, alone: Folded, source: Source) -> Payment:
    """One round trip. The update on conflict takes the payment's lock and fills in what earlier
    facts did not know; it never replaces what they did. Recording a fact twice changes nothing.
    """
    sql = """
        WITH payment AS (
            INSERT INTO billing_payment AS known
                (id, provider, external_payment_id, email, plan_code,
                 status, amount, currency, paid_at, failed_at, canceled_at)
            VALUES
                (%(id)s, %(provider)s, %(external_payment_id)s, %(email)s, %(plan_code)s,
                 %(status)s, %(folded_amount)s, %(folded_currency)s,
                 %(folded_paid_at)s, %(failed_at)s, %(canceled_at)s)
            ON CONFLICT (provider, external_payment_id) DO UPDATE SET
                email = coalesce(known.email, excluded.email),
                plan_code = coalesce(known.plan_code, excluded.plan_code),
                updated_at = now()
            RETURNING *, xmax = 0 AS created
        ), fact AS (
            INSERT INTO billing_fact
                (event_id, event_key, payment_id, kind, amount, currency, paid_at,
                 occurred_at, received_at, refund_id, amount_refunded, live)
            SELECT
                %(event_id)s, %(event_key)s, payment.id, %(kind)s, %(amount)s, %(currency)s,
                %(paid_at)s, %(occurred_at)s, %(received_at)s, %(refund_id)s,
                %(amount_refunded)s, %(live)s
            FROM payment
            ON CONFLICT (event_id) DO NOTHING
        )
        SELECT payment.*, now() AS db_now, pg_current_xact_id()::text AS db_txid FROM payment
    """
    params = {
        "id": time_ordered_id(),
        "provider": source.provider,
        "external_payment_id": fact.external_payment_id,
        "email": fact.email,
        "plan_code": fact.plan_code,
        "status": alone.status,
        "folded_amount": alone.amount,
        "folded_currency": alone.currency,
        "folded_paid_at": alone.paid_at,
        "failed_at": alone.failed_at,
        "canceled_at": alone.canceled_at,
        **{
            field.attname: getattr(row, field.attname)
            for field in Fact._meta.concrete_fields
            if field.attname != "payment_id"
        },
    }
    return Payment.objects.raw(sql, params)[0]
