"""A payment's state as a pure function of what its provider said, in whatever order it came."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from billing.facts import FactKind
from billing.models import Fact, PaymentStatus

S = PaymentStatus
# Which moves a fact of a kind makes, by the status it finds. DISPUTED and PARTIALLY_REFUNDED
# leave the status alone. SUCCEEDED → CANCELED is not here: see _money_went_back.
_MOVES: dict[FactKind, tuple[frozenset[PaymentStatus], PaymentStatus]] = {
    FactKind.PENDING: (frozenset({S.RECEIVED}), S.PROCESSING),
    FactKind.PAID: (frozenset({S.RECEIVED, S.PROCESSING, S.FAILED, S.CANCELED}), S.SUCCEEDED),
    FactKind.FAILED: (frozenset({S.RECEIVED, S.PROCESSING}), S.FAILED),
    FactKind.CANCELED: (frozenset({S.RECEIVED, S.PROCESSING, S.FAILED}), S.CANCELED),
    FactKind.REFUNDED: (frozenset(set(S) - {S.REFUNDED}), S.REFUNDED),
}
# Breaks ties between facts of the same moment: a refund comes after the success it refunds.
_RANK = {kind: rank for rank, kind in enumerate(FactKind)}


@dataclass(frozen=True)
class Folded:
    status: PaymentStatus
    amount: Decimal | None
    currency: str | None
    paid_at: datetime | None
    failed_at: datetime | None
    canceled_at: datetime | None
    # Two successes told different sums: a person must say which is true.
    amounts_disagree: bool
    # A cancel that may or may not have come after the success: a person must say.
    cancel_unconfirmed: bool


def fold(facts: Iterable[Fact]) -> Folded:
    ordered = sorted(facts, key=lambda fact: (_when(fact), _RANK[_kind(fact)], fact.event_key))
    by_kind = {kind: [fact for fact in ordered if _kind(fact) is kind] for kind in FactKind}
    cancels, paid = by_kind[FactKind.CANCELED], by_kind[FactKind.PAID]
    went_back = any(_money_went_back(cancel, paid) for cancel in cancels)
    status = _walk(ordered)
    if status is S.SUCCEEDED and went_back:
        status = S.CANCELED
    told = next((fact for fact in [*paid, *reversed(ordered)] if fact.amount is not None), None)
    return Folded(
        status=status,
        amount=told.amount if told else None,
        currency=told.currency if told else None,
        paid_at=(paid[0].paid_at or _when(paid[0])) if paid else None,
        failed_at=_first_time(by_kind[FactKind.FAILED]),
        canceled_at=_first_time(cancels),
        amounts_disagree=len(
            {(fact.amount, fact.currency) for fact in paid if fact.amount and fact.currency}
        )
        > 1,
        cancel_unconfirmed=status is S.SUCCEEDED
        and any(_order_unknown(cancel, paid) for cancel in cancels),
    )


def status_after(kind: FactKind) -> PaymentStatus | None:
    """Where a fact of this kind leads when nothing stands against it; None: nowhere."""
    move = _MOVES.get(kind)
    return move[1] if move else None


def _walk(ordered: list[Fact]) -> PaymentStatus:
    status = S.RECEIVED
    for fact in ordered:
        sources, target = _MOVES.get(_kind(fact), (frozenset(), status))
        if status in sources:
            status = target
    return status


def _money_went_back(cancel: Fact, paid: list[Fact]) -> bool:
    """A cancel undoes a success only when the provider's own times say that it came later.
    Times of arrival would make the end depend on the order of arrival."""
    if cancel.occurred_at is None:
        return False
    return any(fact.occurred_at and fact.occurred_at < cancel.occurred_at for fact in paid)


def _order_unknown(cancel: Fact, paid: list[Fact]) -> bool:
    if cancel.occurred_at is None:
        return True
    return any(fact.occurred_at in (None, cancel.occurred_at) for fact in paid)


def _first_time(facts: list[Fact]) -> datetime | None:
    return _when(facts[0]) if facts else None


def _when(fact: Fact) -> datetime:
    return fact.occurred_at or fact.received_at


def _kind(fact: Fact) -> FactKind:
    return FactKind(fact.kind)
