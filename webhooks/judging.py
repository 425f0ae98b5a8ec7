"""From what happened to a payment to how its event ends. One rule after the other, no I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from billing.codes import WAITING, ErrorCode
from billing.facts import FactKind, NotAPayment, PaymentFact
from billing.fold import same_sum, status_after
from billing.models import Payment
from billing.policies import Objection
from billing.purchases.base import Act
from billing.recording import JoinsPayments, PaymentUnknown, Recorded
from billing.settlements import Settlement
from webhooks.models import EventStatus, ReviewState, WebhookEvent
from webhooks.providers.base import Malformed

# Of a payment whose grant is live: a person must choose.
_FOR_A_PERSON = {
    FactKind.PARTIALLY_REFUNDED: (ErrorCode.PARTIAL_REFUND, "partly refunded"),
    FactKind.DISPUTED: (ErrorCode.DISPUTED, "the customer disputes the payment"),
}
_REINSTATE = (
    ErrorCode.REINSTATE_DUE,
    "what took the money back did not stand: reinstate what was given?",
)

NOT_STARTED_HERE = "no payment that was started here goes by this number yet"
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
    said: PaymentFact, settlement: Settlement, *, overruled: bool, siblings: list[WebhookEvent]
) -> Verdict:
    """`siblings`: those of the payment's other events that wait, or that a person sees or saw."""
    effect = settlement.effect
    if effect and effect.act is not Act.GAVE:
        return _judge_effect(settlement)
    if said.kind is not FactKind.PAID and not effect:
        return _judge_non_success(said, settlement, siblings)
    return _judge_success(said, settlement, overruled=overruled)


def _judge_success(said: PaymentFact, settlement: Settlement, *, overruled: bool) -> Verdict:
    recorded = settlement.recorded
    if recorded.folded.reinstatable:
        return _for_a_person(*_REINSTATE)
    if settlement.objection:
        return _judge_objection(settlement.objection)
    if not recorded.folded.gives:
        return Verdict(EventStatus.IGNORED, ErrorCode.OUT_OF_ORDER, "the money has gone back")
    if settlement.effect:
        return _judge_given(settlement, overruled=overruled)
    contradiction = None if overruled else _contradiction(said, recorded)
    return contradiction or _processed(recorded)


def settled_along(settlement: Settlement) -> Callable[[WebhookEvent], bool]:
    """Which of the payment's other events are done with, now that this happened."""
    effect, folded = settlement.effect, settlement.recorded.folded
    act = effect.act if effect else None
    moot = set()
    if act in (Act.TOOK_BACK, Act.SHORTENED):
        moot.add(ErrorCode.PARTIAL_REFUND)
    if act is Act.TOOK_BACK:
        moot |= {ErrorCode.REVOKE_DUE, ErrorCode.WALLET_SHORT}
    if folded.gives and settlement.recorded.payment.subscription_applied_at:
        moot.add(ErrorCode.WALLET_SHORT)
    if act is Act.TOOK_BACK or not folded.disputed:
        moot.add(ErrorCode.DISPUTED)
    if not settlement.reinstatable:
        moot.add(ErrorCode.REINSTATE_DUE)
    if not folded.cancel_unconfirmed:
        moot.add(ErrorCode.CANCEL_UNCONFIRMED)
    given = act in (Act.GAVE, Act.REINSTATED)

    def settled(event: WebhookEvent) -> bool:
        waited = event.status != EventStatus.PROCESSED and event.error_code in _WAIT_FOR_A_GRANT
        return event.error_code in moot or (given and waited)

    return settled


# Events that are done with once the payment is applied.
_WAIT_FOR_A_GRANT = WAITING | {
    ErrorCode.AMOUNT_MISMATCH,
    ErrorCode.PLAN_UNKNOWN,
    ErrorCode.PERIOD_OVERFLOW,
    ErrorCode.PAYMENT_DISMISSED,
    ErrorCode.ORDER_ALREADY_PAID,
    ErrorCode.ORDER_CLOSED,
    ErrorCode.LATE_SUCCESS,
    ErrorCode.WALLET_SHORT,
}


def judge_unrecorded(error: PaymentUnknown | JoinsPayments) -> Verdict:
    if isinstance(error, PaymentUnknown):
        return Verdict(EventStatus.FAILED_RETRYABLE, ErrorCode.PAYMENT_UNKNOWN, NOT_STARTED_HERE)
    message = "the names it gives to one payment belong to several"
    return for_review(ErrorCode.PAYMENTS_JOINED, message)


def judge_non_payment(said: NotAPayment) -> Verdict:
    code = ErrorCode.NON_SUCCESS_STATUS if said.incoming_status else ErrorCode.UNKNOWN_TYPE
    return Verdict(EventStatus.IGNORED, code)


def judge_test_mode() -> Verdict:
    return Verdict(EventStatus.IGNORED, ErrorCode.TEST_MODE)


def judge_malformed(error: Malformed) -> Verdict:
    return for_review(ErrorCode.MALFORMED, str(error))


def judge_retracted(payment: Payment, objection: Objection) -> Verdict:
    message = f"read again, it is not about payment {payment.pk}: {objection.message}"
    return for_review(ErrorCode.REVOKE_DUE, message)


def for_review(code: ErrorCode, message: str | None) -> Verdict:
    return Verdict(EventStatus.FAILED_FINAL, code, message, needs_review=True)


def _judge_objection(objection: Objection) -> Verdict:
    if objection.code in WAITING:
        return Verdict(EventStatus.FAILED_RETRYABLE, objection.code, objection.message)
    return for_review(objection.code, objection.message)


def _judge_effect(settlement: Settlement) -> Verdict:
    """Something was taken back, or given again, just now."""
    if settlement.reinstatable:
        return _for_a_person(*_REINSTATE)
    return _judge_given(settlement, overruled=True)


def _judge_given(settlement: Settlement, *, overruled: bool) -> Verdict:
    """It was applied just now. What stands against it may have come before it, and must be heard
    all the same."""
    recorded, folded = settlement.recorded, settlement.recorded.folded
    doubts = [
        (folded.amounts_disagree and not overruled, ErrorCode.AMOUNT_MISMATCH, OTHER_AMOUNT),
        (folded.purchases_disagree and not overruled, ErrorCode.FACTS_DISAGREE, OTHER_PURCHASE),
        (folded.disputed and folded.gives, *_FOR_A_PERSON[FactKind.DISPUTED]),
        (settlement.undecided_refund, *_FOR_A_PERSON[FactKind.PARTIALLY_REFUNDED]),
    ]
    for doubtful, code, message in doubts:
        if doubtful:
            return _for_a_person(code, message)
    return _processed(recorded)


def _for_a_person(code: ErrorCode, message: str) -> Verdict:
    return Verdict(EventStatus.PROCESSED, code, message, needs_review=True)


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
    changed_later = before != now and not same_sum(before, now)
    if differs or changed_later:
        return for_review(ErrorCode.AMOUNT_MISMATCH, OTHER_AMOUNT)
    purchase = (payment.email, payment.plan_code, payment.merchant_uid)
    before_that = (stored["email"], stored["plan_code"], stored["merchant_uid"])
    if recorded.folded.purchases_disagree and (
        purchase != before_that or _names_another(said, purchase)
    ):
        return for_review(ErrorCode.FACTS_DISAGREE, OTHER_PURCHASE)
    return None


def _names_another(said: PaymentFact, purchase: tuple[str | None, str | None, str | None]) -> bool:
    email, plan_code, merchant_uid = purchase
    return bool(
        (said.email and email and said.email.lower() != email.lower())
        or (said.plan_code and said.plan_code != plan_code)
        or (said.merchant_uid and said.merchant_uid != merchant_uid)
    )


def _judge_non_success(
    said: PaymentFact, settlement: Settlement, siblings: list[WebhookEvent]
) -> Verdict:
    recorded = settlement.recorded
    payment, folded = recorded.payment, recorded.folded
    # Somebody must carry what stands against a success; one of its events is enough.
    carried_by_another = any(row.status != EventStatus.PROCESSED for row in siblings)
    if settlement.reinstatable and said.kind in _MAY_REINSTATE:
        return _for_a_person(*_REINSTATE)
    if settlement.objection and (payment.subscription_applied_at or not carried_by_another):
        return _judge_objection(settlement.objection)
    if said.kind is FactKind.CANCELED and folded.cancel_unconfirmed:
        return _unconfirmed_cancel(EventStatus.FAILED_FINAL)
    if payment.subscription_applied_at and (asks := _asks_for_a_person(said, settlement, siblings)):
        return _for_a_person(*asks)
    wanted = status_after(said.kind)
    if wanted is not None and wanted != payment.status:
        return Verdict(EventStatus.IGNORED, ErrorCode.OUT_OF_ORDER)
    return Verdict(EventStatus.IGNORED, ErrorCode.NON_SUCCESS_STATUS)


_MAY_REINSTATE = (
    FactKind.REFUNDED,
    FactKind.PARTIALLY_REFUNDED,
    FactKind.REFUND_FAILED,
    FactKind.DISPUTE_LOST,
    FactKind.DISPUTE_WON,
)
_ABOUT_REFUNDS = (FactKind.PARTIALLY_REFUNDED, FactKind.REFUNDED)


def _asks_for_a_person(
    said: PaymentFact, settlement: Settlement, siblings: list[WebhookEvent]
) -> tuple[ErrorCode, str] | None:
    """What was given stands, but not all of its money does."""
    recorded = settlement.recorded
    asked = any(row.error_code == ErrorCode.PARTIAL_REFUND for row in siblings)
    if said.kind is FactKind.DISPUTED and recorded.folded.disputed:
        return _FOR_A_PERSON[FactKind.DISPUTED]
    rose = recorded.payment.amount_refunded > recorded.refunded_before
    undecided = rose or (settlement.undecided_refund and not asked)
    if said.kind in _ABOUT_REFUNDS and (undecided or not _tells_how_much(said, recorded)):
        return _FOR_A_PERSON[FactKind.PARTIALLY_REFUNDED]
    # The dispute was in front of it, and is over.
    if said.kind is FactKind.DISPUTE_WON and settlement.undecided_refund:
        return _FOR_A_PERSON[FactKind.PARTIALLY_REFUNDED]
    if said.kind is FactKind.REFUND_FAILED and recorded.payment.amount_refunded > 0:
        # Of several refunds nobody can tell which one failed.
        return None if said.refund_id else _REINSTATE
    return None


def _tells_how_much(said: PaymentFact, recorded: Recorded) -> bool:
    currency = recorded.payment.currency
    if said.currency and currency and said.currency != currency:
        return False
    if said.amount_refunded is not None:
        return True
    own = [told for told in recorded.folded.refunds if told.refund_id == said.refund_id]
    return any(told.amount for told in own)


def _unconfirmed_cancel(status: EventStatus) -> Verdict:
    message = "without the provider's times nobody can tell whether the cancel came after payment"
    return Verdict(status, ErrorCode.CANCEL_UNCONFIRMED, message, needs_review=True)
