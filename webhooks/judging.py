"""From what happened to a payment to how its event ends. One rule after the other, no I/O."""

from __future__ import annotations

from dataclasses import dataclass

from billing.codes import WAITING, ErrorCode
from billing.facts import FactKind, NotAPayment, PaymentFact
from billing.fold import status_after
from billing.models import PaymentStatus
from billing.policies import Objection
from billing.recording import Recorded
from billing.settling import Settlement
from webhooks.models import EventStatus, ReviewState
from webhooks.providers.base import Malformed


@dataclass(frozen=True)
class Verdict:
    status: EventStatus
    code: ErrorCode | None = None
    message: str | None = None
    needs_review: bool = False

    @property
    def review(self) -> ReviewState | None:
        return ReviewState.OPEN if self.needs_review else None


def judge(said: PaymentFact, recorded: Recorded, settlement: Settlement) -> Verdict:
    if said.kind is not FactKind.PAID and not settlement.extension:
        return _judge_non_success(said, recorded)
    objection = settlement.objection
    if recorded.payment.status != PaymentStatus.SUCCEEDED:
        return Verdict(EventStatus.IGNORED, ErrorCode.OUT_OF_ORDER, "the money has gone back")
    if objection:
        return _judge_objection(objection)
    if recorded.folded.amounts_disagree:
        return for_review(
            ErrorCode.AMOUNT_MISMATCH, "another event of this payment told another amount"
        )
    if recorded.folded.cancel_unconfirmed:
        return _unconfirmed_cancel(EventStatus.PROCESSED)
    return Verdict(EventStatus.PROCESSED)


def judge_non_payment(said: NotAPayment) -> Verdict:
    code = ErrorCode.NON_SUCCESS_STATUS if said.incoming_status else ErrorCode.UNKNOWN_TYPE
    return Verdict(EventStatus.IGNORED, code)


def judge_test_mode() -> Verdict:
    return Verdict(EventStatus.IGNORED, ErrorCode.TEST_MODE)


def judge_malformed(error: Malformed) -> Verdict:
    return for_review(ErrorCode.MALFORMED, str(error))


def for_review(code: ErrorCode, message: str | None) -> Verdict:
    return Verdict(EventStatus.FAILED_FINAL, code, message, needs_review=True)


def _judge_objection(objection: Objection) -> Verdict:
    if objection.code in WAITING:
        return Verdict(EventStatus.FAILED_RETRYABLE, objection.code, objection.message)
    return for_review(objection.code, objection.message)


def _judge_non_success(said: PaymentFact, recorded: Recorded) -> Verdict:
    if said.kind is FactKind.CANCELED and recorded.folded.cancel_unconfirmed:
        return _unconfirmed_cancel(EventStatus.FAILED_FINAL)
    wanted = status_after(said.kind)
    changed_nothing = wanted is not None and wanted != recorded.payment.status
    code = ErrorCode.OUT_OF_ORDER if changed_nothing else ErrorCode.NON_SUCCESS_STATUS
    return Verdict(EventStatus.IGNORED, code)


def _unconfirmed_cancel(status: EventStatus) -> Verdict:
    message = "without the provider's times nobody can tell whether the cancel came after payment"
    return Verdict(status, ErrorCode.CANCEL_UNCONFIRMED, message, needs_review=True)
