"""A payment's state as a pure function of what its provider said, in whatever order it came."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal

from billing.facts import FactKind
from billing.models import Fact, PaymentStatus
from billing.money import same_amount
from billing.refund_sums import (
    FAILURES,
    RefundTold,
    amount_refunded,
    is_whole,
    last_reinstated,
    refunds_told,
    standing,
    total_refunded,
)

# What a fact claims the payment is. A dispute that is open or won claims nothing about that, nor do
# partial refunds and refunds that failed.
_CLAIMS = {
    FactKind.PENDING: PaymentStatus.PROCESSING,
    FactKind.FAILED: PaymentStatus.FAILED,
    FactKind.CANCELED: PaymentStatus.CANCELED,
    FactKind.PAID: PaymentStatus.SUCCEEDED,
    FactKind.REFUNDED: PaymentStatus.REFUNDED,
    FactKind.DISPUTE_LOST: PaymentStatus.REFUNDED,
}
_DECISIONS = (FactKind.STAFF_REVOKED, FactKind.STAFF_REINSTATED)
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
    merchant_uid: str | None
    paid_at: datetime | None
    failed_at: datetime | None
    canceled_at: datetime | None
    # A dispute is open: neither won nor lost.
    disputed: bool
    # Two successes told different sums, or named different buyers, plans or orders: a person must
    # say which is true.
    amounts_disagree: bool
    purchases_disagree: bool
    # A cancel that may or may not have come after the success: a person must say.
    cancel_unconfirmed: bool
    refunds: tuple[RefundTold, ...]
    # How many facts there are: whatever changes the payment again adds one.
    facts_heard: int = field(compare=False)
    # A person took back what was given although the money stays.
    staff_revoked: bool
    # What took the money back did not stand (a refund that failed, a dispute won after all): a
    # person may reinstate.
    reinstatable: bool

    @property
    def gives(self) -> bool:
        """Whether this payment is worth what it bought."""
        return self.status is PaymentStatus.SUCCEEDED and not self.staff_revoked


def fold(facts: Iterable[Fact]) -> Folded:
    """Where facts differ in what they tell of amount, e-mail or plan, the first success counts:
    by the provider's times, and without them by the event's key, never by time of arrival."""
    everything = list(facts)
    ordered = sorted(_latest_readings(everything), key=_provider_order)
    paid = [fact for fact in ordered if fact.kind == FactKind.PAID]
    cancels = [fact for fact in ordered if fact.kind == FactKind.CANCELED]
    told = _telling_the_sum(ordered, paid)
    failures = [fact for fact in ordered if fact.kind in FAILURES]
    # REFUNDED is left only by a person, even when the refund failed: until somebody reinstated,
    # knowing of the failure, nothing is given.
    known = [failure for failure in failures if (failure.pk or 0) < last_reinstated(ordered)]
    status, as_it_stands = _status(ordered, known, told), _status(ordered, failures, told)
    decided = _last_decision(ordered)
    staff_revoked = decided is not None and decided.kind == FactKind.STAFF_REVOKED
    return Folded(
        status=status,
        amount=told.amount if told else None,
        currency=told.currency if told else None,
        amount_refunded=amount_refunded(
            ordered, failures, told, fully=as_it_stands is PaymentStatus.REFUNDED
        ),
        email=_first(paid, ordered, "email"),
        plan_code=_first(paid, ordered, "plan_code"),
        merchant_uid=_first(paid, ordered, "merchant_uid"),
        paid_at=(paid[0].paid_at or _when(paid[0])) if paid else None,
        failed_at=_first_time(fact for fact in ordered if fact.kind == FactKind.FAILED),
        canceled_at=_first_time(cancels),
        disputed=_dispute_is_open(standing(ordered, failures)),
        amounts_disagree=_disagree(paid),
        purchases_disagree=_purchases_disagree(paid),
        cancel_unconfirmed=status is PaymentStatus.SUCCEEDED
        and not staff_revoked
        and _order_unknown(cancels, paid),
        refunds=tuple(refunds_told(ordered, told)),
        facts_heard=len(everything),
        staff_revoked=staff_revoked,
        reinstatable=(status is PaymentStatus.REFUNDED and as_it_stands is PaymentStatus.SUCCEEDED)
        or (
            staff_revoked
            and status is PaymentStatus.SUCCEEDED
            and any((failure.pk or 0) > (decided.pk or 0) for failure in failures if decided)
        ),
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


def _last_decision(facts: list[Fact]) -> Fact | None:
    decisions = [fact for fact in facts if fact.kind in _DECISIONS]
    return max(decisions, key=lambda fact: fact.pk or 0, default=None)


def _status(facts: list[Fact], failures: list[Fact], told: Fact | None) -> PaymentStatus:
    left = standing(facts, failures)
    claims = [
        _CLAIMS[FactKind(fact.kind)]
        for fact in left
        if fact.kind in _CLAIMS and (fact.kind != FactKind.REFUNDED or is_whole(fact, told))
    ]
    status = max(claims, key=_STRENGTH.index, default=PaymentStatus.RECEIVED)
    if status is not PaymentStatus.SUCCEEDED:
        return status
    if told and told.amount and total_refunded(facts, failures, told) >= told.amount:
        return PaymentStatus.REFUNDED
    paid = [fact for fact in left if fact.kind == FactKind.PAID]
    cancels = [fact for fact in left if fact.kind == FactKind.CANCELED]
    return PaymentStatus.CANCELED if _money_went_back(cancels, paid) else status


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
    """The success itself; what a failed try or a refund was about says nothing about what was
    paid, as long as anything better is known."""
    pending = [fact for fact in ordered if fact.kind == FactKind.PENDING]
    candidates = [*paid, *pending] if paid else [*pending, *ordered]
    return next((fact for fact in candidates if fact.amount and fact.currency), None)


def _dispute_is_open(facts: list[Fact]) -> bool:
    kinds = {fact.kind for fact in facts}
    return FactKind.DISPUTED in kinds and FactKind.DISPUTE_LOST not in kinds


def _disagree(paid: list[Fact]) -> bool:
    sums = [(fact.amount, fact.currency) for fact in paid if fact.amount and fact.currency]
    return any(not same_sum(sums[0], other) for other in sums[1:])


def _purchases_disagree(paid: list[Fact]) -> bool:
    return (
        len({fact.email.lower() for fact in paid if fact.email}) > 1
        or len({fact.plan_code for fact in paid if fact.plan_code}) > 1
        or len({fact.merchant_uid for fact in paid if fact.merchant_uid}) > 1
    )


def same_sum(
    one: tuple[Decimal | None, str | None], other: tuple[Decimal | None, str | None]
) -> bool:
    (amount, currency), (other_amount, other_currency) = one, other
    if amount is None or other_amount is None or currency is None:
        return False
    return currency == other_currency and same_amount(amount, other_amount, currency)


def _first(paid: list[Fact], ordered: list[Fact], field: str) -> str | None:
    return next((value for fact in [*paid, *ordered] if (value := getattr(fact, field))), None)


def _first_time(facts: Iterable[Fact]) -> datetime | None:
    return min((_when(fact) for fact in facts), default=None)


def _when(fact: Fact) -> datetime:
    return fact.occurred_at or fact.received_at
