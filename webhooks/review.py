"""What a person does about an event or a payment: the same walk, the same locks, an audit row
with the actor and the reason."""

from __future__ import annotations

from django.db import transaction
from django.db.models.functions import Now

from billing.codes import ErrorCode
from billing.models import Payment, PaymentStatus
from billing.settling import Decision
from subscriptions.models import Plan, Subscription, SubscriptionStatus, User
from webhooks import audit
from webhooks.audit import Action, Actor, Request
from webhooks.linking import waiting_events
from webhooks.models import ReviewState, WebhookEvent
from webhooks.outcomes import Outcome
from webhooks.process import process
from webhooks.running import run
from webhooks.transactions import short_transaction

# Reasons for review that "apply anyway" overrules.
OVERRULABLE = frozenset(
    {
        ErrorCode.AMOUNT_MISMATCH,
        ErrorCode.PLAN_UNKNOWN,
        ErrorCode.PAYLOAD_CONFLICT,
        ErrorCode.PAYMENT_DISMISSED,
    }
)


class CannotDecide(Exception):
    """The decision does not fit what is there; the text is for the person."""


def reprocess(event: WebhookEvent, actor: Actor, reason: str = "") -> Outcome:
    return run(event, Request(actor, Action.EVENT_REPROCESSED, reason))


def reprocess_and_roll_back(event: WebhookEvent, actor: Actor) -> Outcome:
    """The real code, and then none of it happened: not in the database, the log line or the
    counters."""
    with transaction.atomic():
        outcome = process(event, request=Request(actor, Action.EVENT_REPROCESSED))
        transaction.set_rollback(True)
    return outcome


def link(payment: Payment, user: User, actor: Actor, reason: str) -> Outcome:
    """Link an unlinked payment to a user and apply it."""
    if payment.user_id is not None:
        raise CannotDecide("This payment is linked already.")
    if payment.status != PaymentStatus.SUCCEEDED:
        raise CannotDecide("Only a payment that succeeded can be linked.")
    event = waiting_events(payment).first()
    if event is None:
        raise CannotDecide("None of its events waits for a user; was it dismissed? Reopen it.")
    outcome = run(event, Request(actor, reason=reason, decision=Decision(user_id=user.pk)))
    if not outcome.change.linked_now:
        raise CannotDecide("Somebody else linked or finished this payment in the meantime.")
    return outcome


def apply_anyway(
    event: WebhookEvent, actor: Actor, reason: str, plan: Plan | None = None
) -> Outcome:
    """Give what was bought although a policy objected."""
    if event.error_code not in OVERRULABLE or event.review != ReviewState.OPEN:
        raise CannotDecide("Only what is open for review over its content can be applied anyway.")
    if not reason.strip():
        raise CannotDecide("A reason is required.")
    return run(event, Request(actor, reason=reason, decision=Decision(overrule=True, plan=plan)))


def dismiss(event: WebhookEvent, actor: Actor, reason: str) -> None:
    """Nothing is given, until a person reopens it."""
    _move_review(event, ReviewState.OPEN, ReviewState.DISMISSED, actor, reason)


def reopen(event: WebhookEvent, actor: Actor, reason: str) -> None:
    """Takes a dismissal back: it is in the review queue again."""
    _move_review(event, ReviewState.DISMISSED, ReviewState.OPEN, actor, reason)


def _move_review(
    event: WebhookEvent, before: ReviewState, after: ReviewState, actor: Actor, reason: str
) -> None:
    if not reason.strip():
        raise CannotDecide("A reason is required.")
    dismissed = after == ReviewState.DISMISSED
    with short_transaction():
        rows = WebhookEvent.objects.filter(pk=event.pk, review=before).update(review=after)
        if rows != 1:
            raise CannotDecide(f"This event is not {before.label.lower()}.")
        audit.write(
            audit.entry(
                Action.REVIEW_DISMISSED if dismissed else Action.REVIEW_REOPENED,
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
