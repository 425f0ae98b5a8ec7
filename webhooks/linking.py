"""Whoever or whatever a payment waited for is there: a user, an order, our own payment's number at
the provider. It is applied at once, and should that fail, by the sweep."""

from __future__ import annotations

from django.db.models import Exists, OuterRef, QuerySet

from billing import linking
from billing.codes import WAITING, ErrorCode
from billing.models import Fact, Order, Payment, PaymentAlias
from subscriptions.models import User
from webhooks import judging
from webhooks.audit import BY_LINKING, BY_NAMING, Request
from webhooks.models import ReviewState, WebhookEvent
from webhooks.running import run

# More than a few are left to the sweep, so that signing up never takes long.
AT_ONCE = 20
SWEEP_BATCH = 200
# An event that waited may have met an error since.
_WAITING_OR_STUMBLED = WAITING | {ErrorCode.PROCESSING_ERROR}
# As long as its order was not there, a payment was taken for what its e-mail and sum suggest.
_WAITING_FOR_ORDER = _WAITING_OR_STUMBLED | {ErrorCode.AMOUNT_MISMATCH, ErrorCode.PLAN_UNKNOWN}
_WAITING_FOR_NAME = (
    ErrorCode.PAYMENT_UNKNOWN,
    ErrorCode.RETRIES_EXHAUSTED,
    ErrorCode.PROCESSING_ERROR,
)


def link_waiting_payments(user: User) -> int:
    """Apply what waits for this user's e-mail; return how much that was."""
    return _link(linking.payments_waiting_for(user.email), limit=AT_ONCE)


def link_payments_of_order(order: Order) -> int:
    """Apply what was paid for this order before it was known here."""
    waiting = linking.payments_waiting_for_order(order.merchant_uid)
    return _link(waiting, limit=AT_ONCE, codes=_WAITING_FOR_ORDER, request=BY_NAMING)


def run_waiting_callbacks(payment: Payment) -> int:
    """Process the callbacks that came before we knew the payment's number; return how many."""
    if not payment.provider_txn_id:
        return 0
    waiting = _unreviewed().filter(
        provider=payment.provider,
        external_payment_id=payment.provider_txn_id,
        error_code__in=_WAITING_FOR_NAME,
    )
    events = list(waiting.order_by("pk")[:AT_ONCE])
    for event in events:
        run(event, BY_NAMING)
    return len(events)


def sweep_linkable_payments() -> int:
    """Payments whose user or order is there although nobody linked them: made in bulk, too many at
    once, or after recovery had stopped looking. Return how many were applied."""
    applied = _link(linking.payments_whose_user_is_there(), limit=SWEEP_BATCH)
    _run_callbacks_whose_payment_is_there()
    return applied + _link(
        linking.payments_whose_order_is_there(),
        limit=SWEEP_BATCH,
        codes=_WAITING_FOR_ORDER,
        request=BY_NAMING,
    )


def _run_callbacks_whose_payment_is_there() -> None:
    """Given up, and then their payment was told of, by a message say."""
    named = PaymentAlias.objects.filter(
        system=OuterRef("provider"), external_id=OuterRef("external_payment_id")
    )
    given_up = _unreviewed().filter(
        Exists(named),
        review=ReviewState.OPEN,
        error_code=ErrorCode.RETRIES_EXHAUSTED,
        error_message=judging.NOT_STARTED_HERE,
    )
    for event in given_up.order_by("pk")[:SWEEP_BATCH]:
        run(event, BY_NAMING)


def waiting_events(
    payment: Payment, codes: frozenset[ErrorCode] = _WAITING_OR_STUMBLED
) -> QuerySet[WebhookEvent]:
    """Those of the payment's events that wait for a user, and that nobody dismissed."""
    facts = Fact.objects.filter(payment=payment).values("event_id")
    return _unreviewed().filter(pk__in=facts, error_code__in=codes).order_by("pk")


def _link(
    payments: QuerySet[Payment],
    *,
    limit: int,
    codes: frozenset[ErrorCode] = _WAITING_OR_STUMBLED,
    request: Request = BY_LINKING,
) -> int:
    # From the payment to its facts to their events: each step by an index.
    waiting = _unreviewed().filter(pk=OuterRef("event_id"), error_code__in=codes)
    facts = Fact.objects.filter(Exists(waiting), payment=OuterRef("pk"))
    applied = 0
    for payment in payments.filter(Exists(facts)).order_by("pk")[:limit]:
        event = waiting_events(payment, codes).first()
        if event is not None:
            applied += run(event, request).change.applied_now
    return applied


def _unreviewed() -> QuerySet[WebhookEvent]:
    return (
        WebhookEvent.objects.filter(signature_valid=True)
        .exclude(review=ReviewState.DISMISSED, review__isnull=False)
        .defer("payload", "raw_body", "headers")
    )
