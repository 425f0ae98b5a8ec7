"""A payment's state as a pure function of what its provider said, in whatever order it came."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal

from billing.facts import FactKind
from billing.models import Fact, PaymentStatus
from billing.money import same_amount

# What a fact claims the payment is. Disputes and partial refunds claim nothing about that.
_CLAIMS = {
    FactKind.PENDING: PaymentStatus.PROCESSING,
    FactKind.FAILED: PaymentStatus.FAILED,
    FactKind.CANCELED: PaymentStatus.CANCELED,
    FactKind.PAID: PaymentStatus.SUCCEEDED,
    FactKind.REFUNDED: PaymentStatus.REFUNDED,
}
# The strongest claim wins: a try that failed or was canceled may be followed by one that
# succeeds, and a refund is the end. The one exception is in _money_went_back.
_STRENGTH = (
    PaymentStatus.RECEIVED,
    PaymentStatus.PROCESSING,
    PaymentStatus.FAILED,
    PaymentStatus.CANCELED,
    PaymentStatus.SUCCEEDED,
    PaymentStatus.REFUNDED,
)
_END_OF_TIME = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True)
class Folded:
    status: PaymentStatus
    amount: Decimal | None
    currency: str | None
    amount_refunded: Decimal
    email: str | None
    plan_code: str | None
    paid_at: datetime | None
    failed_at: datetime | None
    canceled_at: datetime | None
    disputed: bool
    # Two successes told different sums, or named different buyers or plans: a person must say
    # which is true.
    amounts_disagree: bool
    purchases_disagree: bool
    # A cancel that may or may not have come after the success: a person must say.
    cancel_unconfirmed: bool


def fold(facts: Iterable[Fact]) -> Folded:
    """Where facts differ in what they tell of amount, e-mail or plan, the first success counts:
    by the provider's times, and without them by the event's key, never by time of arrival."""
    ordered = sorted(_latest_readings(facts), key=_provider_order)
    paid = [fact for fact in ordered if fact.kind == FactKind.PAID]
    cancels = [fact for fact in ordered if fact.kind == FactKind.CANCELED]
    status = _strongest_claim(ordered)
    if status is PaymentStatus.SUCCEEDED and _money_went_back(cancels, paid):
        status = PaymentStatus.CANCELED
    told = _telling_the_sum(ordered, paid)
    amount_refunded = _refunded(ordered, status, told)
    if status is PaymentStatus.SUCCEEDED and told and amount_refunded >= (told.amount or 0):
        status = PaymentStatus.REFUNDED
    return Folded(
        status=status,
        amount=told.amount if told else None,
        currency=told.currency if told else None,
        amount_refunded=amount_refunded,
        email=next((fact.email for fact in [*paid, *ordered] if fact.email), None),
        plan_code=next((fact.plan_code for fact in [*paid, *ordered] if fact.plan_code), None),
        paid_at=(paid[0].paid_at or _when(paid[0])) if paid else None,
        failed_at=_first_time(fact for fact in ordered if fact.kind == FactKind.FAILED),
        canceled_at=_first_time(cancels),
        disputed=any(fact.kind == FactKind.DISPUTED for fact in ordered),
        amounts_disagree=_disagree(paid),
        purchases_disagree=len({fact.email.lower() for fact in paid if fact.email}) > 1
        or len({fact.plan_code for fact in paid if fact.plan_code}) > 1,
        cancel_unconfirmed=status is PaymentStatus.SUCCEEDED and _order_unknown(cancels, paid),
    )


def status_after(kind: FactKind) -> PaymentStatus | None:
    """Where a fact of this kind leads when nothing stands against it; None: nowhere."""
    return _CLAIMS.get(kind)


def _latest_readings(facts: Iterable[Fact]) -> list[Fact]:
    """An event that was read again, after its provider's file was mended, counts as it was read
    last; a retraction is a reading that says nothing."""
    in_order = sorted(facts, key=lambda fact: fact.pk or 0)
    return list({fact.event_id: fact for fact in in_order}.values())


def _provider_order(fact: Fact) -> tuple[datetime, str]:
    return (fact.occurred_at or _END_OF_TIME, fact.event_key)


def _strongest_claim(facts: list[Fact]) -> PaymentStatus:
    claims = [_CLAIMS[FactKind(fact.kind)] for fact in facts if fact.kind in _CLAIMS]
    return max(claims, key=_STRENGTH.index, default=PaymentStatus.RECEIVED)


def _money_went_back(cancels: list[Fact], paid: list[Fact]) -> bool:
    """A cancel undoes a success only when the provider's own times say that it came later, and
    that no other success came after it. Times of arrival would make the end depend on the order
    of arrival."""
    canceled = [fact.occurred_at for fact in cancels if fact.occurred_at]
    succeeded = [fact.occurred_at for fact in paid if fact.occurred_at]
    all_known = bool(canceled) and len(succeeded) == len(paid)
    return all_known and max(canceled) > max(succeeded)


def _order_unknown(cancels: list[Fact], paid: list[Fact]) -> bool:
    return any(
        None in (cancel.occurred_at, success.occurred_at)
        or cancel.occurred_at == success.occurred_at
        for cancel in cancels
        for success in paid
    )


def _telling_the_sum(ordered: list[Fact], paid: list[Fact]) -> Fact | None:
    """The success itself; what a failed try was about says nothing about what was paid."""
    pending = [fact for fact in ordered if fact.kind == FactKind.PENDING]
    candidates = [*paid, *pending] if paid else ordered
    return next((fact for fact in candidates if fact.amount and fact.currency), None)


def _refunded(ordered: list[Fact], status: PaymentStatus, told: Fact | None) -> Decimal:
    totals = [fact.amount_refunded for fact in ordered if fact.amount_refunded is not None]
    if status is PaymentStatus.REFUNDED and told and told.amount:
        totals.append(told.amount)
    return max(totals, default=Decimal(0))


def _disagree(paid: list[Fact]) -> bool:
    sums = [(fact.amount, fact.currency) for fact in paid if fact.amount and fact.currency]
    return any(not same_sum(sums[0], other) for other in sums[1:])


def same_sum(
    one: tuple[Decimal | None, str | None], other: tuple[Decimal | None, str | None]
) -> bool:
    (amount, currency), (other_amount, other_currency) = one, other
    if amount is None or other_amount is None or currency is None:
        return False
    return currency == other_currency and same_amount(amount, other_amount, currency)


def _first_time(facts: Iterable[Fact]) -> datetime | None:
    return min((_when(fact) for fact in facts), default=None)


def _when(fact: Fact) -> datetime:
    return fact.occurred_at or fact.received_at
