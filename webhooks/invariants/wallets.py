"""The books of the wallets balance, and say what the grants say."""

from __future__ import annotations

from collections.abc import Iterator

from billing.models import EntryKind, Purchase, ReservationStatus
from webhooks.invariants.querying import broken_by

_TOPUPS = [EntryKind.TOPUP, EntryKind.TOPUP_REVOKED, EntryKind.TOPUP_REINSTATED]
_SPENDINGS = [EntryKind.SPENDING, EntryKind.SPENDING_REFUNDED, EntryKind.SPENDING_REINSTATED]


def balance_is_the_sum_of_entries() -> Iterator[str]:
    """A wallet's balance is the sum of its entries."""
    return broken_by(
        """
        SELECT wallet.id FROM billing_wallet AS wallet
        LEFT JOIN (
            SELECT wallet_id, sum(amount) AS total FROM billing_walletentry GROUP BY wallet_id
        ) AS booked ON booked.wallet_id = wallet.id
        WHERE wallet.balance <> coalesce(booked.total, 0)
        """
    )


def entries_say_the_balance_after_them() -> Iterator[str]:
    """Each entry's balance_after is the sum of the wallet's entries up to it. Entries are numbered
    under the wallet's lock, so their order is that of the changes."""
    return broken_by(
        """
        SELECT id FROM (
            SELECT id, balance_after,
                sum(amount) OVER (PARTITION BY wallet_id ORDER BY id) AS total
            FROM billing_walletentry
        ) AS entry
        WHERE balance_after <> total
        """
    )


def wallet_covers_what_is_reserved() -> Iterator[str]:
    """A wallet's balance is never negative, and what is reserved is a part of it."""
    return broken_by(
        """
        SELECT id FROM billing_wallet
        WHERE NOT (balance >= 0 AND balance < 1e15 AND reserved >= 0 AND reserved <= balance)
        """
    )


def reserved_is_the_sum_of_reservations() -> Iterator[str]:
    """What a wallet holds back is the sum of its reservations that are not finished."""
    return broken_by(
        """
        SELECT wallet.id FROM billing_wallet AS wallet
        LEFT JOIN (
            SELECT wallet_id, sum(amount) AS total FROM billing_reservation
            WHERE status = %(reserved)s GROUP BY wallet_id
        ) AS held ON held.wallet_id = wallet.id
        WHERE wallet.reserved <> coalesce(held.total, 0)
        """,
        reserved=ReservationStatus.RESERVED,
    )


def reservation_is_spent_once() -> Iterator[str]:
    """A committed reservation is spent once, for its own sum; one that is held is not spent; one
    that was released at most once, when a person let a late success pass."""
    return broken_by(
        """
        SELECT reservation.id FROM billing_reservation AS reservation
        LEFT JOIN (
            SELECT payment_id, count(*) AS number, sum(amount) AS total,
                min(wallet_id::text)::uuid AS wallet_id
            FROM billing_walletentry WHERE kind = %(spending)s GROUP BY payment_id
        ) AS spent ON spent.payment_id = reservation.payment_id
        WHERE reservation.status = %(committed)s AND spent.number IS NULL
            OR reservation.status = %(reserved)s AND spent.number IS NOT NULL
            OR spent.number > 1 OR spent.total <> -reservation.amount
            OR spent.wallet_id <> reservation.wallet_id
        """,
        spending=EntryKind.SPENDING,
        committed=ReservationStatus.COMMITTED,
        reserved=ReservationStatus.RESERVED,
    )


def topup_is_in_the_books() -> Iterator[str]:
    """A live top-up is in its wallet, less what partial refunds took; of a revoked one nothing is
    left there."""
    return broken_by(
        """
        SELECT given.id FROM billing_grant AS given
        LEFT JOIN (
            SELECT payment_id, wallet_id, sum(amount) AS total FROM billing_walletentry
            WHERE kind = ANY(%(topups)s) GROUP BY payment_id, wallet_id
        ) AS booked ON booked.payment_id = given.payment_id
            AND booked.wallet_id = given.wallet_id
        WHERE given.kind = %(topup)s AND coalesce(booked.total, 0) <> CASE
            WHEN given.revoked_at IS NULL THEN given.amount - given.shortened_for ELSE 0 END
        """,
        topup=Purchase.WALLET_TOPUP,
        topups=_TOPUPS,
    )


def spending_is_in_the_books() -> Iterator[str]:
    """A payment from a wallet took its reservation's sum out of it, as long as its grant is live;
    after that the wallet has it back."""
    return broken_by(
        """
        SELECT given.id FROM billing_grant AS given
        JOIN billing_payment AS payment ON payment.id = given.payment_id
            AND payment.initiated_at IS NOT NULL
        JOIN billing_reservation AS reservation ON reservation.payment_id = payment.id
        LEFT JOIN (
            SELECT payment_id, wallet_id, sum(amount) AS total FROM billing_walletentry
            WHERE kind = ANY(%(spendings)s) GROUP BY payment_id, wallet_id
        ) AS booked ON booked.payment_id = reservation.payment_id
            AND booked.wallet_id = reservation.wallet_id
        WHERE coalesce(booked.total, 0) <> CASE
            WHEN given.revoked_at IS NULL THEN -reservation.amount ELSE 0 END
        """,
        spendings=_SPENDINGS,
    )


RULES = (
    balance_is_the_sum_of_entries,
    entries_say_the_balance_after_them,
    wallet_covers_what_is_reserved,
    reserved_is_the_sum_of_reservations,
    reservation_is_spent_once,
    topup_is_in_the_books,
    spending_is_in_the_books,
)
