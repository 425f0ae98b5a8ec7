"""What is due follows from the fold: give what was bought, once, or take it back, once."""

from __future__ import annotations

from dataclasses import replace

from django.db.models.functions import Now

from billing.codes import ErrorCode
from billing.facts import FactKind
from billing.giving import give
from billing.linking import find_order
from billing.models import Grant, Order, OrderStatus, Payment, PaymentStatus
from billing.policies import Objection
from billing.purchases import bookings, kind_of, spendings
from billing.purchases.base import all_or_nothing
from billing.recording import Recorded, decide, save_refunds
from billing.recording_sql import FOLDED_FIELDS
from billing.settlements import Decision, Settlement

NO_AMOUNT = Objection(ErrorCode.PARTIAL_REFUND, "nobody knows of how much it was a part")
PERSON_SAID_NO = Objection(ErrorCode.PAYMENT_DISMISSED, "a person dismissed this payment before")
_CAME_TO_NOTHING = (PaymentStatus.FAILED, PaymentStatus.CANCELED, PaymentStatus.REFUNDED)


class ChangedMeanwhile(Exception):
    """A row changed although its lock was ours: never, unless a guard is broken."""


def settle(recorded: Recorded, decision: Decision, *, dismissed: bool = False) -> Settlement:
    """`dismissed`: a person decided against this payment before; only a person may differ."""
    recorded = _decided(recorded, decision)
    if recorded.folded.refunds or not recorded.is_new:
        save_refunds(recorded.payment, recorded.folded)
    settlement = _settle(recorded, decision, dismissed=dismissed)
    if not (recorded.folded.refunds or recorded.payment.amount_refunded):
        return settlement
    grant = Grant.objects.filter(payment=recorded.payment).first()
    if grant is None:
        return settlement
    return replace(settlement, shortened_for=grant.shortened_for, kept_for=grant.kept_for)


def _settle(recorded: Recorded, decision: Decision, *, dismissed: bool) -> Settlement:
    payment, gives = recorded.payment, recorded.folded.gives
    applied = payment.subscription_applied_at is not None
    if gives and not applied:
        return _give(recorded, decision, dismissed=dismissed)
    if applied and not gives:
        return _take_back(recorded)
    if applied and (decision.shorten or decision.reinstate):
        return _shorten(recorded, back=decision.reinstate)
    released = payment.status in _CAME_TO_NOTHING and spendings.let_go(payment)
    _close_order(recorded)
    _save(recorded, "order_id", "user_id")
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
        reopens_order=decision.reinstate,
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
        _move_order(order, _closed(payment))
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


def _close_order(recorded: Recorded) -> None:
    """Money that came and went back before it could give anything ends the order as it would have
    in any other order of events."""
    payment = recorded.payment
    went_back = payment.status in (PaymentStatus.REFUNDED, PaymentStatus.CANCELED)
    if not (went_back and recorded.folded.paid_at and payment.merchant_uid):
        return
    order = find_order(payment.merchant_uid)
    # An order that another payment pays is not this one's to close.
    if order is None or order.status == OrderStatus.PAID:
        return
    payment.order_id, payment.user_id = order.pk, order.user_id
    if order.status != _closed(payment):
        _move_order(order, _closed(payment))
        bookings.close(order)


def _closed(payment: Payment) -> OrderStatus:
    refunded = payment.status == PaymentStatus.REFUNDED
    return OrderStatus.REFUNDED if refunded else OrderStatus.CANCELED


def _shorten(recorded: Recorded, *, back: bool) -> Settlement:
    """By as much as was refunded since somebody dealt with it last. `back`: a refund failed after
    all, and what it was shortened for is given back."""
    payment = recorded.payment
    grant = Grant.objects.get(payment=payment)
    since = payment.amount_refunded - grant.shortened_for - (0 if back else grant.kept_for)
    _save(recorded)
    if payment.amount is None or (since >= 0 if back else since <= 0):
        return Settlement(recorded, objection=None if payment.amount else NO_AMOUNT)
    effect = kind_of(grant.kind).shorten(grant, since, payment.amount, recorded.now)
    if isinstance(effect, Objection):
        return Settlement(recorded, objection=effect)
    _save_grant(grant, live=True, shortened_for=grant.shortened_for + since)
    return Settlement(recorded, effect=effect)


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
        starts_at=grant.starts_at,
        ends_at=grant.ends_at,
        unused=grant.unused,
        shortened_by=grant.shortened_by,
        **changes,
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
