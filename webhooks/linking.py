"""A user who appears, or gets another e-mail, gets what was paid under it: at once, and should
that fail, by the sweep."""

from __future__ import annotations

from django.db.models import Exists, OuterRef, QuerySet

from billing.codes import WAITING, ErrorCode
from billing.linking import payments_waiting_for, payments_whose_user_is_there
from billing.models import Fact, Payment
from subscriptions.models import User
from webhooks.audit import BY_LINKING
from webhooks.models import ReviewState, WebhookEvent
from webhooks.running import run

# More than a few are left to the sweep, so that signing up never takes long.
AT_ONCE = 20
SWEEP_BATCH = 200
# An event that waited may have met an error since.
_WAITING_OR_STUMBLED = WAITING | {ErrorCode.PROCESSING_ERROR}


def link_waiting_payments(user: User) -> int:
    """Apply what waits for this user's e-mail; return how much that was."""
    return _link(payments_waiting_for(user.email), limit=AT_ONCE)


def sweep_linkable_payments() -> int:
    """Payments whose user is there although nobody linked them: made in bulk, too many at once,
    or after recovery had stopped looking. Return how many were applied."""
    return _link(payments_whose_user_is_there(), limit=SWEEP_BATCH)


def waiting_events(payment: Payment) -> QuerySet[WebhookEvent]:
    """Those of the payment's events that wait for a user, and that nobody dismissed."""
    facts = Fact.objects.filter(payment=payment).values("event_id")
    return _waiting().filter(pk__in=facts).order_by("pk")


def _link(payments: QuerySet[Payment], *, limit: int) -> int:
    facts = Fact.objects.filter(payment=OuterRef(OuterRef("pk"))).values("event_id")
    linkable = payments.filter(Exists(_waiting().filter(pk__in=facts))).order_by("pk")
    applied = 0
    for payment in linkable[:limit]:
        event = waiting_events(payment).first()
        if event is not None:
            applied += run(event, BY_LINKING).change.applied_now
    return applied


def _waiting() -> QuerySet[WebhookEvent]:
    return (
        WebhookEvent.objects.filter(error_code__in=_WAITING_OR_STUMBLED, signature_valid=True)
        .exclude(review=ReviewState.DISMISSED, review__isnull=False)
        .defer("payload", "raw_body", "headers")
    )
