"""Give what was bought: link, check the policies, apply, and leave the grant that proves it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from uuid import UUID

from django.db import connection

from billing.linking import find_order, find_user
from billing.models import Order, OrderStatus, Payment, Purchase, Reservation
from billing.policies import (
    NO_WALLET_MONEY,
    Objection,
    Price,
    no_such_plan,
    nobody_to_give_it_to,
    order_objection,
    price_objection,
)
from billing.purchases import kind_of, spendings
from billing.purchases.base import Bargain, Effect, all_or_nothing
from billing.recording import Recorded
from subscriptions.ids import time_ordered_id
from subscriptions.models import Plan
from subscriptions.prices import find_offer


class AlreadyApplied(Exception):
    """The payment got its grant although its lock was ours: never, unless a guard is broken."""


def give(
    recorded: Recorded,
    *,
    user_id: UUID | None,
    overruled: bool,
    plan: Plan | None,
    reopens_order: bool,
    before_granting: Callable[[], None],
    refused: Objection | None,
) -> Effect | Objection:
    """`user_id`, `overruled`, `plan` and `reopens_order` are a person's decision. `refused`: link,
    and no more."""
    payment = recorded.payment
    order = _link(payment, user_id)
    if refused:
        return refused
    if payment.user_id is None:
        return nobody_to_give_it_to(payment)
    reservation = spendings.find_reservation(payment)
    reopens = overruled or reopens_order or _closed_by_itself(recorded, order)
    bargain = (
        _objection_to_source(payment, reservation)
        or (order and order_objection(order, overruled=reopens))
        or _strike(recorded, order, reservation, overruled=overruled, plan=plan)
    )
    if isinstance(bargain, Objection):
        return bargain
    bargain = replace(bargain, overruled=reopens)
    effect = _exchange(bargain, reservation)
    if isinstance(effect, Objection):
        return effect
    before_granting()
    _grant(recorded, bargain, effect)
    return effect


def _closed_by_itself(recorded: Recorded, order: Order | None) -> bool:
    """Canceled and then paid again: no other payment has ever been given anything for the order."""
    return (
        order is not None
        and order.status != OrderStatus.PENDING
        and recorded.folded.canceled_at is not None
        and not order.grants.exclude(payment=recorded.payment).exists()
    )


def _objection_to_source(payment: Payment, reservation: Reservation | None) -> Objection | None:
    refused = reservation is None and spendings.was_refused(payment)
    return NO_WALLET_MONEY if refused else None


def _link(payment: Payment, user_id: UUID | None) -> Order | None:
    """Through the order that it names; without one, by e-mail."""
    order = find_order(payment.merchant_uid)
    if order is not None:
        payment.order_id, payment.user_id = order.pk, order.user_id
    elif payment.user_id is None:
        payment.user_id = user_id or find_user(payment.email)
    return order


def _exchange(bargain: Bargain, reservation: Reservation | None) -> Effect | Objection:
    kind = kind_of(_purchase(bargain.order, reservation))
    if reservation is None:
        return kind.give(bargain)
    return all_or_nothing(
        lambda: spendings.pay(reservation, overruled=bargain.overruled),
        lambda: kind.give(bargain),
    )


def _purchase(order: Order | None, reservation: Reservation | None) -> Purchase:
    if order is not None:
        return Purchase(order.buys)
    return Purchase.WALLET_SPENDING if reservation else Purchase.SUBSCRIPTION


def _strike(
    recorded: Recorded,
    order: Order | None,
    reservation: Reservation | None,
    *,
    overruled: bool,
    plan: Plan | None,
) -> Bargain | Objection:
    payment = recorded.payment
    prices = []
    if reservation is not None:
        held = Price(reservation.amount, reservation.wallet.currency, "the reservation")
        prices.append(held)
    if order is not None:
        prices.append(Price(order.amount, order.currency, f"order {order}"))
        plan = order.plan
    elif reservation is not None:
        plan = None
    else:
        offered, price = _offer(recorded)
        plan = (plan or offered) if overruled else offered
        if plan is None:
            return no_such_plan(payment)
        prices += [price] if price else []
    for price in [] if overruled else prices:
        if objection := price_objection(payment, price):
            return objection
    return Bargain(payment=payment, order=order, plan=plan, now=recorded.now, overruled=overruled)


def _offer(recorded: Recorded) -> tuple[Plan | None, Price | None]:
    payment = recorded.payment
    # The price of the day it was paid counts, but a time in the future does not open a later one.
    paid_at = min(payment.paid_at or recorded.now, recorded.now)
    offer = find_offer(plan_code=payment.plan_code, currency=payment.currency, at=paid_at)
    if offer is None:
        return None, None
    return offer.plan, Price(offer.price, payment.currency or "", f"plan {offer.plan}")


def _grant(recorded: Recorded, bargain: Bargain, effect: Effect) -> None:
    """The grant, the payment's mark and the order's, in one statement.

    Our locks keep two of us from getting here; should they ever not, the grant's unique payment
    and order and the condition on the mark refuse the second, and everything rolls back.
    """
    payment, order = recorded.payment, bargain.order
    plan_id = bargain.plan.pk if bargain.plan else None
    payment.subscription_id = effect.subscription_id
    payment.subscription_applied_at = recorded.now
    with connection.cursor() as cursor:
        cursor.execute(
            """
            WITH given AS (
                INSERT INTO billing_grant (
                    id, payment_id, kind, order_id, subscription_id, plan_id, starts_at, ends_at,
                    length, booking_id, wallet_id, amount
                ) VALUES (
                    %(id)s, %(payment)s, %(kind)s, %(order)s, %(subscription)s, %(plan)s,
                    %(starts_at)s, %(ends_at)s,
                    %(ends_at)s::timestamptz - %(starts_at)s::timestamptz, %(booking)s,
                    %(wallet)s, %(amount)s
                )
            ), paid AS (
                UPDATE billing_order
                SET status = %(order_paid)s, paid_at = %(now)s, updated_at = now()
                WHERE id = %(order)s
            )
            UPDATE billing_payment SET
                user_id = %(user)s, order_id = %(order)s, plan_id = %(plan)s,
                subscription_id = %(subscription)s, subscription_applied_at = %(now)s,
                updated_at = now()
            WHERE id = %(payment)s AND subscription_applied_at IS NULL
            """,
            {
                "id": time_ordered_id(),
                "payment": payment.pk,
                "kind": effect.kind,
                "order": order.pk if order else None,
                "order_paid": OrderStatus.PAID,
                "user": payment.user_id,
                "subscription": effect.subscription_id,
                "plan": plan_id,
                "starts_at": effect.starts_at,
                "ends_at": effect.ends_at,
                "booking": effect.booking_id,
                "wallet": effect.wallet_id,
                "amount": effect.amount,
                "now": recorded.now,
            },
        )
        if cursor.rowcount != 1:
            raise AlreadyApplied
