"""Give what was bought, once: link, check the policies, apply."""

from dataclasses import dataclass
from uuid import UUID

from django.db import connection
from django.db.models.functions import Now

from billing.codes import ErrorCode
from billing.linking import find_user
from billing.models import Payment, PaymentStatus
from billing.policies import Objection, no_such_plan, price_objection
from billing.recording import FOLDED_FIELDS, Recorded
from subscriptions.extending import Extension, extend
from subscriptions.ids import time_ordered_id
from subscriptions.models import Plan
from subscriptions.periods import PeriodOverflow
from subscriptions.prices import find_offer


@dataclass(frozen=True)
class Decision:
    """What a person decided about a payment; it takes the same walk as everything else."""

    user_id: UUID | None = None
    overrule: bool = False
    plan: Plan | None = None


@dataclass(frozen=True)
class Settlement:
    objection: Objection | None = None
    extension: Extension | None = None
    linked_now: bool = False


PERSON_SAID_NO = Objection(ErrorCode.PAYMENT_DISMISSED, "a person dismissed this payment before")


class AlreadyApplied(Exception):
    """The payment got its grant although its lock was ours: never, unless a guard is broken."""


def settle(recorded: Recorded, decision: Decision, *, dismissed: bool = False) -> Settlement:
    """`dismissed`: a person decided against this payment before; only a person may differ."""
    payment = recorded.payment
    if payment.status != PaymentStatus.SUCCEEDED or payment.subscription_applied_at:
        _save(recorded)
        return Settlement()
    was_linked = payment.user_id is not None
    payment.user_id = payment.user_id or decision.user_id or find_user(payment.email)
    linked_now = payment.user_id is not None and not was_linked
    given = PERSON_SAID_NO if dismissed and decision == Decision() else _apply(recorded, decision)
    if isinstance(given, Objection):
        _save(recorded, "user_id")
        return Settlement(objection=given, linked_now=linked_now)
    return Settlement(extension=given, linked_now=linked_now)


def _apply(recorded: Recorded, decision: Decision) -> Extension | Objection:
    payment = recorded.payment
    if payment.user_id is None:
        if payment.email:
            return Objection(ErrorCode.USER_MISSING, "no user has this e-mail yet")
        return Objection(ErrorCode.UNLINKED_PAYMENT, "the provider gave no e-mail")
    plan = _plan(recorded, decision)
    if isinstance(plan, Objection):
        return plan
    try:
        extension = extend(user_id=payment.user_id, plan=plan, now=recorded.now)
    except PeriodOverflow as overflow:
        return Objection(ErrorCode.PERIOD_OVERFLOW, str(overflow))
    _save(recorded)
    _grant(recorded, plan, extension)
    return extension


def _plan(recorded: Recorded, decision: Decision) -> Plan | Objection:
    payment = recorded.payment
    # The price of the day it was paid counts, but a time in the future does not open a later one.
    paid_at = min(payment.paid_at or recorded.now, recorded.now)
    offer = find_offer(plan_code=payment.plan_code, currency=payment.currency, at=paid_at)
    if decision.overrule and (chosen := decision.plan or (offer.plan if offer else None)):
        return chosen
    if offer is None:
        return no_such_plan(payment)
    return price_objection(payment, offer) or offer.plan


def _grant(recorded: Recorded, plan: Plan, extension: Extension) -> None:
    """The grant and the payment's mark, in one statement.

    Our lock on the payment keeps two of us from getting here; should it ever not, the grant's
    unique payment and the condition on the mark refuse the second, and everything rolls back.
    """
    payment = recorded.payment
    payment.subscription_id = extension.subscription_id
    payment.subscription_applied_at = recorded.now
    with connection.cursor() as cursor:
        cursor.execute(
            """
            WITH given AS (
                INSERT INTO billing_grant
                    (id, payment_id, subscription_id, plan_id, starts_at, ends_at)
                VALUES
                    (%(id)s, %(payment)s, %(subscription)s, %(plan)s, %(starts_at)s, %(ends_at)s)
            )
            UPDATE billing_payment SET
                user_id = %(user)s, plan_id = %(plan)s, subscription_id = %(subscription)s,
                subscription_applied_at = %(now)s, updated_at = now()
            WHERE id = %(payment)s AND subscription_applied_at IS NULL
            """,
            {
                "id": time_ordered_id(),
                "payment": payment.pk,
                "user": payment.user_id,
                "subscription": extension.subscription_id,
                "plan": plan.pk,
                "starts_at": extension.starts_at,
                "ends_at": extension.ends_at,
                "now": recorded.now,
            },
        )
        if cursor.rowcount != 1:
            raise AlreadyApplied


def _save(recorded: Recorded, *more: str) -> None:
    """What the fold changed, and more fields if told; for a new payment that is nothing."""
    payment = recorded.payment
    changed = {
        name: value
        for name in (*FOLDED_FIELDS, *more)
        if (value := getattr(payment, name)) != recorded.stored[name]
    }
    if changed:
        Payment.objects.filter(pk=payment.pk).update(**changed, updated_at=Now())
