"""Money kept here: hold it for a payment, then spend it or let it go; credit and debit.

Each function joins the caller's transaction, and a refusal leaves nothing of its own behind. Locks
are taken in the order Reservation, Wallet.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

from django.db import connection, transaction
from django.db.models.functions import Now

from billing.models import EntryKind, Payment, Reservation, ReservationStatus, Wallet, WalletEntry
from billing.money import parse_amount, parse_currency
from subscriptions.ids import time_ordered_id
from subscriptions.models import User


class WalletRefusal(Exception):
    """Why a wallet's money was not touched. The text may be shown to whoever asked."""


class NoSuchUser(WalletRefusal):
    pass


class NoSuchWallet(WalletRefusal):
    pass


class NoSuchReservation(WalletRefusal):
    pass


class OtherReservation(WalletRefusal):
    """The payment has a reservation already, and not the one that was asked for."""


class TooLittleMoney(WalletRefusal):
    pass


class BooksBroken(Exception):
    """A wallet holds less than its reservations: never, unless a guard is broken."""


@dataclass(frozen=True)
class Finished:
    """The reservation as it stands. `moved` says whether it was this call that moved it; where it
    was not, the status tells which way it went before."""

    reservation: Reservation
    moved: bool


def open_wallet(*, user_id: UUID, currency: str) -> Wallet:
    """One per user and currency: the second call returns the first one's."""
    if not User.objects.filter(pk=user_id).exists():
        raise NoSuchUser("there is no such user")
    code = parse_currency(currency)
    return Wallet.objects.get_or_create(user_id=user_id, currency=code)[0]


@transaction.atomic
def reserve(*, payment_id: UUID, wallet_id: UUID, amount: Decimal) -> Reservation:
    """Hold money back for a payment, once: the second call returns the first one's reservation,
    whatever became of it. Two calls at once queue up at the unique payment; should the first be
    refused, its row goes with its savepoint and the second tries for itself."""
    amount = _checked(amount, wallet_id)
    _check_payer(payment_id, wallet_id, amount)
    is_new = _insert_reservation(payment_id, wallet_id, amount)
    reservation = Reservation.objects.get(payment_id=payment_id)
    if (reservation.wallet_id, reservation.amount) != (wallet_id, amount):
        raise OtherReservation("this payment has a reservation of another wallet or amount")
    if is_new and _change(wallet_id, reserved=amount) is None:
        raise TooLittleMoney("the wallet has too little money")
    return reservation


def _check_payer(payment_id: UUID, wallet_id: UUID, amount: Decimal) -> None:
    """For a payment that is known here, only its own payer's money will do, and just its sum."""
    payment = Payment.objects.filter(pk=payment_id).first()
    if payment is None:
        return
    wallet = Wallet.objects.get(pk=wallet_id)
    asked = (wallet.user_id, wallet.currency, amount)
    if asked != (payment.user_id, payment.currency, payment.amount):
        raise OtherReservation("this payment has another payer, currency or amount")


@transaction.atomic
def commit(payment_id: UUID) -> Finished:
    """Spend what was reserved. A reservation that was released stays so: look at its status."""
    finished = _finish(payment_id, ReservationStatus.COMMITTED)
    if finished.moved:
        held = finished.reservation
        booked = _book(
            held.wallet_id, -held.amount, EntryKind.SPENDING, payment_id, reserved=-held.amount
        )
        if booked is None:
            raise BooksBroken
    return finished


@transaction.atomic
def release(payment_id: UUID) -> Finished:
    """Let go of what was reserved. A reservation that was committed stays so."""
    finished = _finish(payment_id, ReservationStatus.RELEASED)
    if finished.moved:
        held = finished.reservation
        if _change(held.wallet_id, reserved=-held.amount) is None:
            raise BooksBroken
    return finished


@transaction.atomic
def credit(
    *, wallet_id: UUID, amount: Decimal, kind: EntryKind, payment_id: UUID | None
) -> Decimal:
    """The new balance. Each call adds: that it is called once is the caller's to prove, as a
    payment's one grant does."""
    balance = _book(wallet_id, _checked(amount, wallet_id), kind, payment_id)
    if balance is None:
        raise BooksBroken
    return balance


@transaction.atomic
def debit(*, wallet_id: UUID, amount: Decimal, kind: EntryKind, payment_id: UUID | None) -> Decimal:
    """The new balance; as `credit`, each call subtracts. What is reserved cannot be debited."""
    balance = _book(wallet_id, -_checked(amount, wallet_id), kind, payment_id)
    if balance is None:
        raise TooLittleMoney("the wallet has too little money")
    return balance


def _checked(amount: Decimal, wallet_id: UUID) -> Decimal:
    """Positive, and of no more decimals than the wallet's currency, which never changes."""
    currency = Wallet.objects.filter(pk=wallet_id).values_list("currency", flat=True).first()
    if currency is None:
        raise NoSuchWallet("there is no such wallet")
    return parse_amount(amount, currency)


def _insert_reservation(payment_id: UUID, wallet_id: UUID, amount: Decimal) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO billing_reservation (id, payment_id, wallet_id, amount, status)
            VALUES (%s, %s, %s, %s, %s)
            ON CONFLICT (payment_id) DO NOTHING
            """,
            [time_ordered_id(), payment_id, wallet_id, amount, ReservationStatus.RESERVED],
        )
        return bool(cursor.rowcount == 1)


def _finish(payment_id: UUID, to: ReservationStatus) -> Finished:
    """Only from RESERVED: of two at once the second waits for the first one's lock, then finds
    the condition false and moves nothing."""
    reserved = Reservation.objects.filter(payment_id=payment_id, status=ReservationStatus.RESERVED)
    moved = reserved.update(status=to, finished_at=Now()) == 1
    reservation = Reservation.objects.filter(payment_id=payment_id).first()
    if reservation is None:
        raise NoSuchReservation("this payment has no reservation")
    return Finished(reservation, moved)


def _book(
    wallet_id: UUID,
    amount: Decimal,
    kind: EntryKind,
    payment_id: UUID | None,
    *,
    reserved: Decimal = Decimal(0),
) -> Decimal | None:
    balance = _change(wallet_id, balance=amount, reserved=reserved)
    if balance is not None:
        WalletEntry.objects.create(
            wallet_id=wallet_id,
            amount=amount,
            kind=kind,
            payment_id=payment_id,
            balance_after=balance,
        )
    return balance


def _change(
    wallet_id: UUID, *, balance: Decimal = Decimal(0), reserved: Decimal = Decimal(0)
) -> Decimal | None:
    """The one statement that changes a wallet; the new balance, or None where more would be
    reserved than there is. The condition is read again under the row's lock, so that two who
    both saw enough money cannot both take it."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE billing_wallet SET
                balance = balance + %(balance)s, reserved = reserved + %(reserved)s,
                updated_at = now()
            WHERE id = %(wallet)s AND balance + %(balance)s >= reserved + %(reserved)s
            RETURNING balance
            """,
            {"wallet": wallet_id, "balance": balance, "reserved": reserved},
        )
        row = cursor.fetchone()
    return row[0] if row else None
