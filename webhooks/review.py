"""What a person does about an event or a payment: the same walk, the same locks, an audit row
with the actor and the reason."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from django.db.models import Case, F, Q, QuerySet, Value, When
from django.db.models.functions import Now

from billing.codes import ErrorCode
from billing.letting_be import keep_despite_refund, let_go_of_reservations
from billing.models import Payment, PaymentStatus
from billing.outbox.messages import write
from billing.settlements import Decision
from billing.telling import subscription_canceled
from subscriptions.models import Plan, Subscription, SubscriptionStatus, User
from webhooks import audit
from webhooks.audit import Action, Actor, Request
from webhooks.linking import waiting_events
from webhooks.models import EventStatus, ReviewState, WebhookEvent
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
        ErrorCode.FACTS_DISAGREE,
        ErrorCode.ORDER_CLOSED,
        ErrorCode.LATE_SUCCESS,
        ErrorCode.PAYMENTS_JOINED,
    }
)
# Reasons for review that ask what shall become of a live or a revoked grant.
ABOUT_WHAT_WAS_GIVEN = frozenset(
    {
        ErrorCode.PARTIAL_REFUND,
        ErrorCode.DISPUTED,
        ErrorCode.REINSTATE_DUE,
        ErrorCode.REVOKE_DUE,
        ErrorCode.CANCEL_UNCONFIRMED,
    }
)


def fits(act: str, event: WebhookEvent) -> bool:
    """Whether it makes sense to offer this act for this event."""
    in_review = event.review == ReviewState.OPEN
    about_grant = in_review and event.error_code in ABOUT_WHAT_WAS_GIVEN
    to_reinstate = event.error_code == ErrorCode.REINSTATE_DUE
    return {
        "apply_anyway": in_review
        and event.error_code in OVERRULABLE
        and event.status != EventStatus.PROCESSED,
        "keep": about_grant,
        "shorten": about_grant and event.error_code == ErrorCode.PARTIAL_REFUND,
        "revoke": about_grant and not to_reinstate,
        "reinstate": about_grant and to_reinstate,
        "dismiss": in_review or event.status == EventStatus.FAILED_RETRYABLE,
        "reopen": event.review == ReviewState.DISMISSED,
    }.get(act, True)


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
    if outcome.code == ErrorCode.PROCESSING_ERROR:
        raise CannotDecide(f"It failed ({outcome.message}): try again.")
    if not outcome.change.linked_now:
        raise CannotDecide("Somebody else linked or finished this payment in the meantime.")
    return outcome


def apply_anyway(
    event: WebhookEvent, actor: Actor, reason: str, plan: Plan | None = None
) -> Outcome:
    """Give what was bought although a policy objected."""
    if event.error_code not in OVERRULABLE or event.review != ReviewState.OPEN:
        raise CannotDecide("Only what is open for review over its content can be applied anyway.")
    if event.status == EventStatus.PROCESSED:
        raise CannotDecide("It is applied already: dismiss this once you have looked at it.")
    if not reason.strip():
        raise CannotDecide("A reason is required.")
    return run(event, Request(actor, reason=reason, decision=Decision(overrule=True, plan=plan)))


def keep(event: WebhookEvent, actor: Actor, reason: str) -> None:
    """What was given stays given, although not all of its money did."""
    rows = WebhookEvent.objects.filter(
        pk=event.pk, review=ReviewState.OPEN, error_code__in=ABOUT_WHAT_WAS_GIVEN
    )
    with short_transaction():
        moved = {"review": ReviewState.RESOLVED}
        _decide(event, rows, moved, actor=actor, action=Action.REVIEW_KEPT, reason=reason)
        if event.error_code == ErrorCode.PARTIAL_REFUND:
            keep_despite_refund(event.pk)


def revoke(event: WebhookEvent, actor: Actor, reason: str) -> Outcome:
    """Take back all that the payment gave, although the payment itself stands."""
    return _decide_about_grant(event, actor, reason, Decision(revoke=True))


def shorten(event: WebhookEvent, actor: Actor, reason: str) -> Outcome:
    """Take back as large a part of it as was refunded."""
    if event.error_code != ErrorCode.PARTIAL_REFUND:
        raise CannotDecide("Only what was partly refunded can be shortened in proportion.")
    return _decide_about_grant(event, actor, reason, Decision(shorten=True))


def reinstate(event: WebhookEvent, actor: Actor, reason: str) -> Outcome:
    """Give back what was taken: the refund failed, or the dispute was won."""
    if event.error_code != ErrorCode.REINSTATE_DUE:
        raise CannotDecide("Only where a refund failed or a dispute was won.")
    return _decide_about_grant(event, actor, reason, Decision(reinstate=True))


def _decide_about_grant(
    event: WebhookEvent, actor: Actor, reason: str, decision: Decision
) -> Outcome:
    if event.error_code not in ABOUT_WHAT_WAS_GIVEN or event.review != ReviewState.OPEN:
        raise CannotDecide("Only where what was given is open for review.")
    if not reason.strip():
        raise CannotDecide("A reason is required.")
    outcome = run(event, Request(actor, reason=reason, decision=decision))
    if outcome.code == ErrorCode.PROCESSING_ERROR:
        raise CannotDecide(f"It failed ({outcome.message}): try again.")
    return outcome


def dismiss(event: WebhookEvent, actor: Actor, reason: str) -> None:
    """Nothing is given, until a person reopens it. Also what only waits for a user."""
    parked = Q(status=EventStatus.FAILED_RETRYABLE)
    rows = WebhookEvent.objects.filter(Q(review=ReviewState.OPEN) | parked, pk=event.pk)
    moved = {
        "review": ReviewState.DISMISSED,
        "status": Case(When(parked, then=Value(EventStatus.FAILED_FINAL)), default=F("status")),
        "next_attempt_at": None,
    }
    with short_transaction():
        _decide(event, rows, moved, actor=actor, action=Action.REVIEW_DISMISSED, reason=reason)
        if event.status != EventStatus.PROCESSED:
            released = let_go_of_reservations(event.pk)
            audit.write(
                *(
                    audit.entry(
                        Action.RESERVATION_RELEASED,
                        actor,
                        reason=reason,
                        event_id=event.pk,
                        payment_id=payment.pk,
                        user_id=payment.user_id,
                    )
                    for payment in released
                )
            )


def reopen(event: WebhookEvent, actor: Actor, reason: str) -> None:
    """Takes a dismissal back: it is in the review queue again."""
    rows = WebhookEvent.objects.filter(pk=event.pk, review=ReviewState.DISMISSED)
    moved = {"review": ReviewState.OPEN}
    _decide(event, rows, moved, actor=actor, action=Action.REVIEW_REOPENED, reason=reason)


def _decide(
    event: WebhookEvent,
    rows: QuerySet[WebhookEvent],
    moved: dict[str, Any],
    *,
    actor: Actor,
    action: Action,
    reason: str,
) -> None:
    if not reason.strip():
        raise CannotDecide("A reason is required.")
    with short_transaction():
        if rows.update(**moved) != 1:
            raise CannotDecide("This event is not in a state for that.")
        audit.write(
            audit.entry(
                action,
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
        entry = audit.entry(
            Action.SUBSCRIPTION_CANCELED,
            actor,
            reason=reason,
            subscription_id=subscription.pk,
            user_id=subscription.user_id,
        )
        audit.write(entry)
        write(subscription_canceled(subscription, cause=entry.pk))
