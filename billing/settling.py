"""What is due follows from the fold: give what was bought, once, or take it back, once."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

from django.db.models.functions import Now

from billing.codes import ErrorCode
from billing.facts import FactKind
from billing.giving import give
from billing.models import Grant, Order, OrderStatus, Payment, PaymentStatus
from billing.policies import Objection
from billing.purchases import kind_of, spendings
from billing.purchases.base import Effect, all_or_nothing
from billing.recording import Recorded, decide, save_refunds
from billing.recording_sql import FOLDED_FIELDS
from subscriptions.models import Plan


@dataclass(frozen=True)
class Decision:
    """What a person decided about a payment; it takes the same walk as everything else."""

    user_id: UUID | None = None
    overrule: bool = False
    plan: Plan | None = None
    revoke: bool = False
    shorten: bool = False
    reinstate: bool = False

    @property
    def about_what_was_given(self) -> bool:
        return self.revoke or self.shorten or self.reinstate


@dataclass(frozen=True)
class Settlement:
    # After a person's decision, should one have been taken: it is a fact as well.
    recorded: Recorded
    objection: Objection | None = None
    effect: Effect | None = None
    linked_now: bool = False
    # The reservation of a payment that came to nothing.
    released: bool = False


PERSON_SAID_NO = Objection(ErrorCode.PAYMENT_DISMISSED, "a person dismissed this payment before")
_CAME_TO_NOTHING = (PaymentStatus.FAILED, PaymentStatus.CANCELED, PaymentStatus.REFUNDED)


class ChangedMeanwhile(Exception):
    """A row changed although its lock was ours: never, unless a guard is broken."""


def settle(recorded: Recorded, decision: Decision, *, dismissed: bool = False) -> Settlement:
    """`dismissed`: a person decided against this payment before; only a person may differ."""
    recorded = _decided(recorded, decision)
    payment, gives = recorded.payment, recorded.folded.gives
    applied = payment.subscription_applied_at is not None
    if recorded.folded.refunds:
        save_refunds(payment, recorded.folded)
    if gives and not applied:
        return _give(recorded, decision, dismissed=dismissed)
    if applied and not gives:
        return _take_back(recorded)
    if applied and (decision.shorten or decision.reinstate):
        return _shorten(recorded)
    released = payment.status in _CAME_TO_NOTHING and spendings.let_go(payment)
    _save(recorded)
    return Settlement(recorded, released=released)


def _decided(recorded: Recorded, decision: Decision) -> Recorded:
    """A decision that fits what is there now; whoever clicked second finds nothing to decide."""
    applied = recorded.payment.subscription_applied_at is not None
    if decision.revoke and applied and recorded.folded.gives:
        return decide(recorded, FactKind.STAFF_REVOKED)
    if decision.reinstate and recorded.folded.reinstatable:
        return decide(recorded, FactKind.STAFF_REINSTATED)
    return recorded


def _give(recorded: Recorded, decision: Decision, *, dismissed: bool) -> Settlement:
    payment = recorded.payment
    grant = None if recorded.is_new else Grant.objects.filter(payment=payment).first()
    if grant is not None:
        return _reinstate(recorded, grant)
    was_linked = payment.user_id is not None
    said_no = dismissed and decision == Decision()
    given = give(
        recorded,
        user_id=decision.user_id,
        overruled=decision.overrule,
        plan=decision.plan,
        before_granting=lambda: _save(recorded),
        refused=PERSON_SAID_NO if said_no else None,
    )
    linked_now = payment.user_id is not None and not was_linked
    if isinstance(given, Objection):
        _save(recorded, "user_id", "order_id")
        return Settlement(recorded, objection=given, linked_now=linked_now)
    return Settlement(recorded, effect=given, linked_now=linked_now)


def _take_back(recorded: Recorded) -> Settlement:
    """Once: the grant is marked only while it is live."""
    payment, now = recorded.payment, recorded.now
    grant = Grant.objects.get(payment=payment)
    order = _locked_order(grant)
    effect = kind_of(grant.kind).take_back(grant, now)
    if isinstance(effect, Objection):
        _save(recorded)
        return Settlement(recorded, objection=effect)
    if reservation := spendings.find_reservation(payment):
        spendings.refund(reservation)
    because = "staff" if recorded.folded.staff_revoked else payment.status
    _save_grant(grant, live=True, revoked_at=now, revoked_because=because)
    if order:
        refunded = payment.status == PaymentStatus.REFUNDED
        _move_order(order, OrderStatus.REFUNDED if refunded else OrderStatus.CANCELED)
    payment.subscription_applied_at = None
    _save(recorded, "subscription_applied_at")
    return Settlement(recorded, effect=effect)


def _reinstate(recorded: Recorded, grant: Grant) -> Settlement:
    payment = recorded.payment
    order = _locked_order(grant)
    reservation = spendings.find_reservation(payment)
    effect = all_or_nothing(
        lambda: _objection_to_pay_again(order),
        lambda: spendings.spend_again(reservation) if reservation else None,
        lambda: kind_of(grant.kind).reinstate(grant, recorded.now),
    )
    if isinstance(effect, Objection):
        _save(recorded)
        return Settlement(recorded, objection=effect)
    _save_grant(grant, live=False, revoked_at=None, revoked_because=None)
    if order:
        _move_order(order, OrderStatus.PAID)
    payment.subscription_applied_at = recorded.now
    _save(recorded, "subscription_applied_at")
    return Settlement(recorded, effect=effect)


def _objection_to_pay_again(order: Order | None) -> Objection | None:
    if order and order.status == OrderStatus.PAID:
        return Objection(ErrorCode.ORDER_ALREADY_PAID, f"order {order} was paid by another since")
    return None


def _shorten(recorded: Recorded) -> Settlement:
    """By as much as was refunded since it was shortened last; a refund that failed after all gives
    that back."""
    payment = recorded.payment
    grant = Grant.objects.get(payment=payment)
    part = _refunded_since(grant, payment)
    effect = kind_of(grant.kind).shorten(grant, part, recorded.now) if part else None
    _save(recorded)
    if effect is None or isinstance(effect, Objection):
        return Settlement(recorded, objection=effect)
    _save_grant(grant, live=True, shortened_for=payment.amount_refunded)
    return Settlement(recorded, effect=effect)


def _refunded_since(grant: Grant, payment: Payment) -> Decimal:
    return (payment.amount_refunded - grant.shortened_for) / (payment.amount or Decimal(1))


def _locked_order(grant: Grant) -> Order | None:
    if grant.order_id is None:
        return None
    return Order.objects.select_for_update(no_key=True).get(pk=grant.order_id)


def _move_order(order: Order, status: OrderStatus) -> None:
    rows = Order.objects.filter(pk=order.pk, status=order.status)
    if rows.update(status=status, updated_at=Now()) != 1:
        raise ChangedMeanwhile


def _save_grant(grant: Grant, *, live: bool, **changes: object) -> None:
    rows = Grant.objects.filter(pk=grant.pk, revoked_at__isnull=live).update(
        starts_at=grant.starts_at, ends_at=grant.ends_at, unused=grant.unused, **changes
    )
    if rows != 1:
        raise ChangedMeanwhile


def _save(recorded: Recorded, *more: str) -> None:
    """What the fold changed, and more fields if told; for a new payment that is nothing."""
    payment, stored = recorded.payment, recorded.stored
    changed = {
        name: value
        for name in (*FOLDED_FIELDS, *more)
        if (value := getattr(payment, name)) != stored[name]
    }
    if not changed:
        return
    rows = Payment.objects.filter(pk=payment.pk, status=stored["status"])
    if rows.update(**changed, updated_at=Now()) != 1:
        raise ChangedMeanwhile
