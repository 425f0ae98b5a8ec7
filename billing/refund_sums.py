"""How much of a payment went back, by what its provider said of the refunds. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from billing.facts import FactKind
from billing.models import Fact

GIVE_BACK = (FactKind.REFUNDED, FactKind.PARTIALLY_REFUNDED)


@dataclass(frozen=True)
class RefundTold:
    refund_id: str
    amount: Decimal | None
    currency: str | None
    failed: bool


def amount_refunded(facts: list[Fact], told: Fact | None, *, fully: bool) -> Decimal:
    """Never more than was paid."""
    if told is None or told.amount is None:
        return total_refunded(facts, None)
    if fully:
        return told.amount
    return min(total_refunded(facts, told), told.amount)


def total_refunded(facts: list[Fact], told: Fact | None) -> Decimal:
    """The larger of what the refunds add up to and the provider's own running total."""
    parts = [refund.amount for refund in refunds_told(facts, told) if refund.amount]
    totals = [fact.amount_refunded for fact in facts if fact.amount_refunded is not None]
    # Without an id nobody can tell two refunds from one that was told twice.
    nameless = [
        amount
        for fact in facts
        if fact.kind in GIVE_BACK and fact.refund_id is None and (amount := _own_amount(fact, told))
    ]
    return max(sum(parts, Decimal(0)), *totals, *nameless, Decimal(0))


def refunds_told(facts: list[Fact], told: Fact | None) -> list[RefundTold]:
    """One per refund id: told twice, it counts once."""
    failed = {fact.refund_id for fact in facts if fact.kind == FactKind.REFUND_FAILED}
    refunds: dict[str, RefundTold] = {}
    for fact in facts:
        if not fact.refund_id or fact.kind not in (*GIVE_BACK, FactKind.REFUND_FAILED):
            continue
        known = refunds.get(fact.refund_id)
        amount = (known.amount if known else None) or _own_amount(fact, told)
        refunds[fact.refund_id] = RefundTold(
            fact.refund_id, amount, fact.currency, fact.refund_id in failed
        )
    return list(refunds.values())


def _own_amount(fact: Fact, told: Fact | None) -> Decimal | None:
    """Some senders put the payment's own amount there: more than went back so far, or the whole of
    it in a partial refund, cannot be this refund's."""
    if fact.amount is None or fact.amount > (fact.amount_refunded or fact.amount):
        return None
    whole = told.amount if told else None
    if whole and fact.kind == FactKind.PARTIALLY_REFUNDED and fact.amount >= whole:
        return None
    return min(fact.amount, whole) if whole else fact.amount
