from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.contrib.postgres.functions import TransactionNow
from django.db import connection
from django.db.models.expressions import RawSQL

from billing.facts import FactKind, Name, PaymentFact
from billing.fold import Folded, fold
from billing.models import Fact, Payment, PaymentStatus, Refund, RefundStatus
from billing.recording_sql import FACT_FIELDS, FIND_OR_CREATE, FOLDED_FIELDS, PAYMENT_FIELDS
from subscriptions.ids import time_ordered_id

_LINKED_FIELDS = ("user_id", "order_id", "subscription_applied_at")


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
    stored: dict[str, Any]
    is_new: bool
    now: datetime
    txid: str

    @property
    def status_before(self) -> PaymentStatus | None:
        return None if self.is_new else PaymentStatus(str(self.stored["status"]))

    @property
    def refunded_before(self) -> Decimal:
        return Decimal(0) if self.is_new else self.stored["amount_refunded"]


class PaymentUnknown(Exception):
    """Payments of this provider start here, and none goes by this name yet."""


class JoinsPayments(Exception):
    """The names that this fact gives to one payment belong to several."""


class NameTakenMeanwhile(Exception):
    """Another event made a payment of one of these names while we made ours: look again."""


def names_of(provider: str, fact: PaymentFact) -> list[Name]:
    """Sorted, so that two events with the same names cannot wait for each other."""
    return sorted({Name(provider, fact.external_payment_id), *fact.aliases})


def record(fact: PaymentFact, source: Source, *, may_create: bool = True) -> Recorded:
    """Append the fact, find or create its payment under lock, fold."""
    row = _to_row(fact, source)
    alone = fold([row])
    payment, is_new, now, txid = _find_or_create_locked(
        fact, row, alone, source, may_create=may_create
    )
    recorded = Recorded(payment, alone, _stored(payment), is_new, now, txid)
    return recorded if is_new else _folded_again(recorded)


def decide(recorded: Recorded, kind: FactKind) -> Recorded:
    """What a person decided is a fact too: the fold must come to the same end ever after."""
    decision_id = time_ordered_id()
    Fact.objects.create(
        payment=recorded.payment,
        event_id=decision_id,
        event_key=f"staff:{decision_id}",
        reading=kind,
        kind=kind,
        occurred_at=recorded.now,
        received_at=recorded.now,
    )
    return _folded_again(recorded)


def retract(source: Source, *, but_not: list[Name]) -> list[Recorded]:
    """The event, read again, no longer speaks of the payments it spoke of before, except of the
    one so named. Returns those that it was retracted from just now, under lock and folded again."""
    spoken_of = Fact.objects.filter(event_id=source.event_id).values("payment_id")
    payments = Payment.objects.filter(pk__in=spoken_of).annotate(
        now=TransactionNow(), txid=RawSQL("pg_current_xact_id()::text", [])
    )
    retracted = []
    for payment in payments.order_by("pk").select_for_update(of=("self",)):
        names = {Name(alias.system, alias.external_id) for alias in payment.aliases.all()}
        if names & set(but_not) or _own_name(payment) in but_not:
            continue
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
        recorded = Recorded(payment, folded, _stored(payment), False, payment.now, payment.txid)
        retracted.append(_folded_again(recorded))
    return retracted


def save_refunds(payment: Payment, folded: Folded) -> None:
    rows = [
        Refund(
            payment=payment,
            external_refund_id=told.refund_id,
            amount=told.amount,
            currency=told.currency,
            status=RefundStatus.FAILED if told.failed else RefundStatus.SUCCEEDED,
        )
        for told in folded.refunds
    ]
    gone = payment.refunds.exclude(external_refund_id__in=[row.external_refund_id for row in rows])
    gone.delete()
    Refund.objects.bulk_create(
        rows,
        update_conflicts=True,
        unique_fields=["payment", "external_refund_id"],
        update_fields=["amount", "currency", "status"],
    )


def _stored(payment: Payment) -> dict[str, Any]:
    return {name: getattr(payment, name) for name in (*FOLDED_FIELDS, *_LINKED_FIELDS)}


def _own_name(payment: Payment) -> Name:
    return Name(payment.provider, payment.external_payment_id)


def _folded_again(recorded: Recorded) -> Recorded:
    folded = fold(recorded.payment.facts.all())
    for name in FOLDED_FIELDS:
        setattr(recorded.payment, name, getattr(folded, name))
    return replace(recorded, folded=folded)


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
        merchant_uid=fact.merchant_uid,
        paid_at=fact.paid_at,
        occurred_at=fact.occurred_at,
        received_at=source.received_at,
        refund_id=fact.refund_id,
        amount_refunded=fact.amount_refunded,
        live=fact.live,
    )


def _find_or_create_locked(
    fact: PaymentFact, row: Fact, alone: Folded, source: Source, *, may_create: bool
) -> tuple[Payment, bool, datetime, str]:
    """One round trip; it is in recording_sql.py."""
    names = names_of(source.provider, fact)
    params = {
        "payment": time_ordered_id(),
        "provider": source.provider,
        "external_payment_id": fact.external_payment_id,
        "systems": [name.system for name in names],
        "external_ids": [name.external_id for name in names],
        "may_create": may_create,
        **{f"folded_{name}": getattr(alone, name) for name in FOLDED_FIELDS},
        **{name: getattr(row, name) for name in FACT_FIELDS if name != "payment_id"},
    }
    with connection.cursor() as cursor:
        cursor.execute(FIND_OR_CREATE, params)
        *values, is_new, known, all_ours, now, txid = cursor.fetchone()
    if known > 1:
        raise JoinsPayments
    if values[0] is None:
        raise PaymentUnknown
    if not all_ours:
        raise NameTakenMeanwhile
    return Payment.from_db(connection.alias, PAYMENT_FIELDS, values), is_new, now, txid
