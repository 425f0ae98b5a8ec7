"""From what happened to a payment to how its event ends. One rule after the other, no I/O."""

from __future__ import annotations

from dataclasses import dataclass

from billing.codes import WAITING, ErrorCode
from billing.facts import FactKind, NotAPayment, PaymentFact
from billing.fold import same_sum, status_after
from billing.models import PaymentStatus
from billing.policies import Objection
from billing.recording import Recorded
from billing.settling import Settlement
from webhooks.models import EventStatus, ReviewState
from webhooks.providers.base import Malformed

# Of a payment that was applied. Taking back is not automatic yet, so a person must hear of it.
_TAKES_SOMETHING_BACK = {
    FactKind.REFUNDED: (ErrorCode.REVOKE_DUE, "refunded after it was applied"),
    FactKind.CANCELED: (ErrorCode.REVOKE_DUE, "canceled after it was applied"),
    FactKind.PARTIALLY_REFUNDED: (ErrorCode.PARTIAL_REFUND, "partly refunded"),
    FactKind.DISPUTED: (ErrorCode.DISPUTED, "the customer disputes the payment"),
}


OTHER_AMOUNT = "another event of this payment told another amount"
OTHER_PURCHASE = "another event of this payment named another buyer or plan"


@dataclass(frozen=True)
class Verdict:
    status: EventStatus
    code: ErrorCode | None = None
    message: str | None = None
    needs_review: bool = False

    @property
    def review(self) -> ReviewState | None:
        return ReviewState.OPEN if self.needs_review else None


def judge(
    said: PaymentFact, recorded: Recorded, settlement: Settlement, *, overruled: bool
) -> Verdict:
    if said.kind is not FactKind.PAID and not settlement.extension:
        return _judge_non_success(said, recorded, settlement)
    if recorded.payment.status != PaymentStatus.SUCCEEDED:
        return Verdict(EventStatus.IGNORED, ErrorCode.OUT_OF_ORDER, "the money has gone back")
    if settlement.objection:
        return _judge_objection(settlement.objection)
    if settlement.extension:
        return _judge_given(recorded, overruled=overruled)
    contradiction = None if overruled else _contradiction(said, recorded)
    return contradiction or _processed(recorded)


def judge_non_payment(said: NotAPayment) -> Verdict:
    code = ErrorCode.NON_SUCCESS_STATUS if said.incoming_status else ErrorCode.UNKNOWN_TYPE
    return Verdict(EventStatus.IGNORED, code)


def judge_test_mode() -> Verdict:
    return Verdict(EventStatus.IGNORED, ErrorCode.TEST_MODE)


def judge_malformed(error: Malformed) -> Verdict:
    return for_review(ErrorCode.MALFORMED, str(error))


def judge_retracted() -> Verdict:
    message = "read again, this event is about something else; what was given stays given"
    return for_review(ErrorCode.REVOKE_DUE, message)


def for_review(code: ErrorCode, message: str | None) -> Verdict:
    return Verdict(EventStatus.FAILED_FINAL, code, message, needs_review=True)


def _judge_objection(objection: Objection) -> Verdict:
    if objection.code in WAITING:
        return Verdict(EventStatus.FAILED_RETRYABLE, objection.code, objection.message)
    return for_review(objection.code, objection.message)


def _judge_given(recorded: Recorded, *, overruled: bool) -> Verdict:
    """It was applied just now. What stands against it may have come before it, and must be heard
    all the same."""
    folded = recorded.folded
    doubts = [
        (folded.amounts_disagree and not overruled, ErrorCode.AMOUNT_MISMATCH, OTHER_AMOUNT),
        (folded.purchases_disagree and not overruled, ErrorCode.FACTS_DISAGREE, OTHER_PURCHASE),
        (folded.disputed, *_TAKES_SOMETHING_BACK[FactKind.DISPUTED]),
        (folded.amount_refunded > 0, *_TAKES_SOMETHING_BACK[FactKind.PARTIALLY_REFUNDED]),
    ]
    for doubtful, code, message in doubts:
        if doubtful:
            return Verdict(EventStatus.PROCESSED, code, message, needs_review=True)
    return _processed(recorded)


def _processed(recorded: Recorded) -> Verdict:
    if recorded.folded.cancel_unconfirmed:
        return _unconfirmed_cancel(EventStatus.PROCESSED)
    return Verdict(EventStatus.PROCESSED)


def _contradiction(said: PaymentFact, recorded: Recorded) -> Verdict | None:
    """It was applied before, and this event tells something else. What was given stays given, and
    a person looks at it."""
    payment, stored = recorded.payment, recorded.stored
    now = (payment.amount, payment.currency)
    before = (stored["amount"], stored["currency"])
    differs = said.amount is not None and not same_sum((said.amount, said.currency), now)
    changed_later = before != now and not same_sum(before, now)  # type: ignore[arg-type]
    if differs or changed_later:
        return for_review(ErrorCode.AMOUNT_MISMATCH, OTHER_AMOUNT)
    purchase = (payment.email, payment.plan_code)
    if recorded.folded.purchases_disagree and (
        purchase != (stored["email"], stored["plan_code"]) or _names_another(said, purchase)
    ):
        return for_review(ErrorCode.FACTS_DISAGREE, OTHER_PURCHASE)
    return None


def _names_another(said: PaymentFact, purchase: tuple[str | None, str | None]) -> bool:
    email, plan_code = purchase
    other_email = said.email and email and said.email.lower() != email.lower()
    return bool(other_email or (said.plan_code and said.plan_code != plan_code))


def _judge_non_success(said: PaymentFact, recorded: Recorded, settlement: Settlement) -> Verdict:
    payment = recorded.payment
    if settlement.objection and recorded.status_before != PaymentStatus.SUCCEEDED:
        # Read again, it no longer stands against the success, and nobody else waits for that.
        return _judge_objection(settlement.objection)
    if said.kind is FactKind.CANCELED and recorded.folded.cancel_unconfirmed:
        return _unconfirmed_cancel(EventStatus.FAILED_FINAL)
    wanted = status_after(said.kind)
    if wanted is not None and wanted != payment.status:
        return Verdict(EventStatus.IGNORED, ErrorCode.OUT_OF_ORDER)
    if payment.subscription_applied_at and said.kind in _TAKES_SOMETHING_BACK:
        code, message = _TAKES_SOMETHING_BACK[said.kind]
        return Verdict(EventStatus.PROCESSED, code, message, needs_review=True)
    return Verdict(EventStatus.IGNORED, ErrorCode.NON_SUCCESS_STATUS)


def _unconfirmed_cancel(status: EventStatus) -> Verdict:
    message = "without the provider's times nobody can tell whether the cancel came after payment"
    return Verdict(status, ErrorCode.CANCEL_UNCONFIRMED, message, needs_review=True)
