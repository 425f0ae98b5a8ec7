"""What took money back, whether it stands, and how much it was, by what the provider said. Pure."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from decimal import Decimal

from billing.facts import FactKind
from billing.models import Fact

GIVE_BACK = (FactKind.REFUNDED, FactKind.PARTIALLY_REFUNDED)
# A refund that failed in the end, a dispute that was won after all.
FAILURES = (FactKind.REFUND_FAILED, FactKind.DISPUTE_WON)
_DISPUTES = (FactKind.DISPUTED, FactKind.DISPUTE_LOST)


@dataclass(frozen=True)
class RefundTold:
    refund_id: str
    amount: Decimal | None
    currency: str | None
    failed: bool


def standing(facts: list[Fact], failures: list[Fact]) -> list[Fact]:
    """Without what these failures undo."""
    only_id = _only_refund_id(facts)
    return [
        fact
        for fact in facts
        if not any(
            _is_about(failure, fact, only_id) and not newer(fact, failure, facts)
            for failure in failures
        )
    ]


def newer(fact: Fact, failure: Fact, facts: list[Fact]) -> bool:
    """By the provider's times. Without them: a person reinstated between the two, so the failure
    that person knew of says nothing about what came afterwards."""
    if fact.occurred_at and failure.occurred_at:
        return fact.occurred_at > failure.occurred_at
    return (failure.pk or 0) < last_reinstated(facts) < (fact.pk or 0)


def last_reinstated(facts: list[Fact]) -> int:
    """By number of the fact; 0: never."""
    reinstated = (fact.pk or 0 for fact in facts if fact.kind == FactKind.STAFF_REINSTATED)
    return max(reinstated, default=0)


def amount_refunded(
    facts: list[Fact], failures: list[Fact], told: Fact | None, *, fully: bool
) -> Decimal:
    """Never more than was paid."""
    if told is None or told.amount is None:
        return total_refunded(facts, failures, None)
    if fully:
        return told.amount
    return min(total_refunded(facts, failures, told), told.amount)


def total_refunded(facts: list[Fact], failures: list[Fact], told: Fact | None) -> Decimal:
    """The larger of what the refunds add up to and the provider's own running total."""
    left = standing(facts, failures)
    given = [fact for fact in left if fact.kind in GIVE_BACK]
    # Two systems that tell of one charge tell of each of its refunds twice, by other ids.
    sums: dict[str, Decimal] = defaultdict(Decimal)
    named = {fact.refund_id: fact for fact in reversed(given) if fact.refund_id}
    amounts = {refund.refund_id: refund.amount for refund in refunds_told(given, told)}
    for refund_id, fact in named.items():
        sums[_system(fact)] += amounts.get(refund_id or "") or Decimal(0)
    # Without an id nobody can tell two refunds from one that was told twice.
    nameless = [_own_amount(fact, told) or Decimal(0) for fact in given if fact.refund_id is None]
    totals = [
        fact.amount_refunded
        for fact in left
        if fact.amount_refunded is not None
        and not _other_currency(fact, told)
        and not _is_outdated(fact, failures, facts)
    ]
    return max([*sums.values(), *nameless, *totals], default=Decimal(0))


def refunds_told(facts: list[Fact], told: Fact | None) -> list[RefundTold]:
    """One per refund id: told twice, it counts once. How much it was, the refund itself says; its
    failure only where nothing else does."""
    failures = [fact for fact in facts if fact.kind == FactKind.REFUND_FAILED]
    failed = {fact.refund_id for fact in failures}
    refunds: dict[str, RefundTold] = {}
    for fact in [*(fact for fact in facts if fact.kind in GIVE_BACK), *failures]:
        if not fact.refund_id:
            continue
        known = refunds.get(fact.refund_id)
        amount = (known.amount if known else None) or _own_amount(fact, told)
        refunds[fact.refund_id] = RefundTold(
            fact.refund_id, amount, fact.currency, fact.refund_id in failed
        )
    return list(refunds.values())


def is_whole(fact: Fact, told: Fact | None) -> bool:
    """Whether a "refunded" gives back everything: one whose own sums are less than what was paid is
    a partial refund, whatever it calls itself."""
    if told is None or told.amount is None or told.kind in GIVE_BACK:
        return True
    if _other_currency(fact, told):
        return False
    own = fact.amount if fact.refund_id else None
    sums = [amount for amount in (fact.amount_refunded, own) if amount is not None]
    return not sums or max(sums) >= told.amount


def _only_refund_id(facts: list[Fact]) -> str | None:
    ids = {fact.refund_id for fact in facts if fact.kind in GIVE_BACK}
    return ids.pop() if len(ids) == 1 else None


def _is_about(failure: Fact, fact: Fact, only_id: str | None) -> bool:
    if failure.kind == FactKind.DISPUTE_WON:
        return fact.kind in _DISPUTES
    if fact.kind not in GIVE_BACK:
        return False
    # A failure that names no refund is about the nameless ones, or about the only one there is.
    return fact.refund_id == failure.refund_id or (
        failure.refund_id is None and fact.refund_id == only_id
    )


def _is_outdated(fact: Fact, failures: list[Fact], facts: list[Fact]) -> bool:
    """A running total that was told before a refund failed may count that refund."""
    return fact.kind in GIVE_BACK and any(
        failure.kind == FactKind.REFUND_FAILED and not newer(fact, failure, facts)
        for failure in failures
    )


def _own_amount(fact: Fact, told: Fact | None) -> Decimal | None:
    """Some senders put the payment's own amount there: more than went back so far, or the whole of
    it in a partial refund, cannot be this refund's."""
    if fact.amount is None or fact.amount > (fact.amount_refunded or fact.amount):
        return None
    if _other_currency(fact, told):
        return None
    whole = told.amount if told else None
    if whole and fact.kind == FactKind.PARTIALLY_REFUNDED and fact.amount >= whole:
        return None
    return min(fact.amount, whole) if whole else fact.amount


def _other_currency(fact: Fact, told: Fact | None) -> bool:
    """Then nobody can tell how much it is of what was paid."""
    return bool(told and told.currency and fact.currency and fact.currency != told.currency)


def _system(fact: Fact) -> str:
    system, named, _ = fact.event_key.partition(":")
    return system if named else ""
