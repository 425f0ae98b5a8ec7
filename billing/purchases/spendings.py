"""A payment that is made out of a wallet, against its reservation.

`pay`, `refund` and `let_go` serve every payment that has a reservation, whatever it buys. As a kind
of purchase of its own it gives nothing else.
"""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal

from django.db.models import Sum

from billing import wallets
from billing.codes import ErrorCode
from billing.models import (
    EntryKind,
    Grant,
    Payment,
    Purchase,
    Reservation,
    ReservationStatus,
    WalletEntry,
)
from billing.policies import Objection
from billing.purchases.base import Act, Bargain, Effect


def find_reservation(payment: Payment) -> Reservation | None:
    """Only payments that started here have one."""
    if payment.initiated_at is None:
        return None
    reservations = Reservation.objects.filter(payment_id=payment.pk).select_related("wallet")
    return reservations.first()


def was_refused(payment: Payment) -> bool:
    """It was to be paid from a wallet that had too little money."""
    return (
        payment.initiated_at is not None
        and payment.facts.filter(event_key=f"refused:{payment.pk}").exists()
    )


def pay(reservation: Reservation, *, overruled: bool) -> Objection | None:
    finished = wallets.commit(reservation.payment_id)
    if finished.reservation.status == ReservationStatus.COMMITTED:
        return None
    if not overruled:
        return Objection(
            ErrorCode.LATE_SUCCESS, "it succeeded after its reservation had been released"
        )
    return _debit(reservation, EntryKind.SPENDING)


def refund(reservation: Reservation) -> Decimal:
    """Whatever this payment took from the wallet and still keeps goes back into it."""
    entries = WalletEntry.objects.filter(
        wallet_id=reservation.wallet_id, payment_id=reservation.payment_id
    )
    kept: Decimal = -(entries.aggregate(total=Sum("amount"))["total"] or Decimal(0))
    if kept > 0:
        wallets.credit(
            wallet_id=reservation.wallet_id,
            amount=kept,
            kind=EntryKind.SPENDING_REFUNDED,
            payment_id=reservation.payment_id,
        )
    return kept


def let_go(payment: Payment) -> bool:
    """The payment came to nothing. Whether it was this call that released the money."""
    reservation = find_reservation(payment)
    return reservation is not None and wallets.release(payment.pk).moved


def spend_again(reservation: Reservation) -> Objection | None:
    return _debit(reservation, EntryKind.SPENDING_REINSTATED)


def _debit(reservation: Reservation, kind: EntryKind) -> Objection | None:
    try:
        wallets.debit(
            wallet_id=reservation.wallet_id,
            amount=reservation.amount,
            kind=kind,
            payment_id=reservation.payment_id,
        )
    except wallets.TooLittleMoney:
        return Objection(ErrorCode.WALLET_SHORT, "the wallet no longer has the money for it")
    return None


def give(bargain: Bargain) -> Effect:
    reservation = find_reservation(bargain.payment)
    if reservation is None:
        raise ValueError("a spending has a reservation")
    return Effect(
        act=Act.GAVE,
        kind=Purchase.WALLET_SPENDING,
        wallet_id=reservation.wallet_id,
        amount=reservation.amount,
    )


def take_back(grant: Grant, now: datetime) -> Effect:
    return _effect(grant, Act.TOOK_BACK)


def shorten(grant: Grant, by: Decimal, whole: Decimal, now: datetime) -> Objection:
    return Objection(
        ErrorCode.PARTIAL_REFUND, "a payment from a wallet cannot be shortened: keep or revoke it"
    )


def reinstate(grant: Grant, now: datetime) -> Effect:
    return _effect(grant, Act.REINSTATED)


def _effect(grant: Grant, act: Act) -> Effect:
    return Effect(
        act=act, kind=Purchase.WALLET_SPENDING, wallet_id=grant.wallet_id, amount=grant.amount
    )
