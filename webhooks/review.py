"""What a person does about an event or a payment: the same walk, the same locks, an audit row
with the actor and the reason."""

from __future__ import annotations

from django.db import transaction
from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from billing.codes import WAITING, ErrorCode
from billing.models import Payment
from billing.settling import Decision
from subscriptions.models import Plan, Subscription, SubscriptionStatus, User
from webhooks import audit, metrics
from webhooks.audit import Action, Actor, Request
from webhooks.logbook import Line
from webhooks.models import ReviewState, WebhookEvent
from webhooks.outcomes import Outcome
from webhooks.process import process
from webhooks.transactions import short_transaction

# Reasons for review that "apply anyway" overrules.
OVERRULABLE = frozenset({ErrorCode.AMOUNT_MISMATCH, ErrorCode.PLAN_UNKNOWN})


class CannotDecide(Exception):
    """The decision does not fit what is there; the text is for the person."""


def reprocess(event: WebhookEvent, actor: Actor, reason: str = "") -> Outcome:
    return _run(event, Request(actor, Action.EVENT_REPROCESSED, reason))


def reprocess_and_roll_back(event: WebhookEvent, actor: Actor) -> Outcome:
    """The real code, and then none of it happened: not in the database, the log line or the
    counters."""
    with transaction.atomic():
        outcome = process(event, request=Request(actor, Action.EVENT_REPROCESSED))
        transaction.set_rollback(True)
    return outcome


def link(payment: Payment, user: User, actor: Actor, reason: str) -> Outcome:
    """Link an unlinked payment to a user and apply it."""
    event = (
        _events_of(payment).filter(Q(error_code__in=WAITING)).order_by("pk").first()
        or _events_of(payment).order_by("pk").first()
    )
    if payment.user_id is not None or event is None:
        raise CannotDecide("This payment is linked already.")
    request = Request(actor, Action.PAYMENT_LINKED, reason, Decision(user_id=user.pk))
    outcome = _run(event, request)
    if outcome.change.user_id != user.pk:
        raise CannotDecide("Somebody else linked or finished this payment in the meantime.")
    return outcome


def apply_anyway(
    event: WebhookEvent, actor: Actor, reason: str, plan: Plan | None = None
) -> Outcome:
    """Give what was bought although a policy objected."""
    if event.error_code not in OVERRULABLE or event.review != ReviewState.OPEN:
        raise CannotDecide("Only open amount and plan mismatches can be applied anyway.")
    if not reason.strip():
        raise CannotDecide("A reason is required.")
    decision = Decision(overrule=True, plan=plan)
    return _run(event, Request(actor, Action.REVIEW_APPLIED_ANYWAY, reason, decision))


def dismiss(event: WebhookEvent, actor: Actor, reason: str) -> None:
    """Nothing is given, and nothing but a person's new decision will change that."""
    if not reason.strip():
        raise CannotDecide("A reason is required.")
    with short_transaction():
        rows = WebhookEvent.objects.filter(pk=event.pk, review=ReviewState.OPEN).update(
            review=ReviewState.DISMISSED
        )
        if rows != 1:
            raise CannotDecide("This event is not open for review.")
        audit.write(
            audit.entry(
                Action.REVIEW_DISMISSED,
                actor,
                reason=reason,
                event_id=event.pk,
                details={"error_code": event.error_code},
            )
        )


def cancel_renewal(subscription: Subscription, actor: Actor, reason: str) -> None:
    """It keeps its end and will not renew; a new payment makes it ACTIVE again."""
    with short_transaction():
        rows = Subscription.objects.filter(
            pk=subscription.pk, status=SubscriptionStatus.ACTIVE
        ).update(status=SubscriptionStatus.CANCELED, updated_at=Now())
        if rows != 1:
            raise CannotDecide("Only an active subscription can be canceled.")
        audit.write(
            audit.entry(
                Action.SUBSCRIPTION_CANCELED,
                actor,
                reason=reason,
                subscription_id=subscription.pk,
                user_id=subscription.user_id,
            )
        )


def _run(event: WebhookEvent, request: Request) -> Outcome:
    line = Line(provider=event.provider, event=event)
    outcome = line.outcome = process(event, request=request)
    metrics.count(outcome)
    line.write()
    return outcome


def _events_of(payment: Payment) -> QuerySet[WebhookEvent]:
    return WebhookEvent.objects.filter(
        pk__in=payment.facts.values("event_id"), signature_valid=True
    ).defer("payload", "raw_body", "headers")
