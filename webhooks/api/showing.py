"""What callers see: ids and amounts as strings, times as ISO 8601, nothing of the customer but
their id."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from billing.models import (
    Booking,
    Order,
    Payment,
    PaymentView,
    Purchase,
    Reservation,
    Wallet,
    WalletEntry,
)
from billing.money import plain
from billing.outbox.snapshots import payment_snapshot

_PAYMENT_FIELDS = (
    "payment_id",
    "provider",
    "external_payment_id",
    "provider_txn_id",
    "merchant_uid",
    "user",
    "status",
    "amount",
    "currency",
    "amount_refunded",
    "paid_at",
    "applied_at",
    "created_at",
)


def order(row: Order) -> dict[str, Any]:
    return {
        "merchant_uid": row.merchant_uid,
        "buys": str(row.buys),
        "status": str(row.status),
        "amount": plain(row.amount),
        "currency": row.currency,
        "user": str(row.user_id),
        "plan": row.plan.code if row.plan else None,
        "wallet": _text(row.wallet_id),
        "booking": _booking(row.booking) if row.buys == Purchase.BOOKING else None,
        "paid_at": _text(row.paid_at),
        "created_at": _text(row.created_at),
    }


def payment(row: Payment) -> dict[str, Any]:
    """As the read model will show it, once the message of it has arrived there."""
    told = payment_snapshot(row)
    told["user"] = told.pop("user_id")
    return {name: told[name] for name in _PAYMENT_FIELDS}


def payment_view(row: PaymentView) -> dict[str, Any]:
    told = {**vars(row), "user": row.user_id}
    told["amount"] = None if row.amount is None else plain(row.amount)
    told["amount_refunded"] = plain(row.amount_refunded)
    return {name: _text(told[name]) for name in _PAYMENT_FIELDS}


def wallet(row: Wallet, *, entries: list[WalletEntry]) -> dict[str, Any]:
    return {
        "wallet_id": str(row.pk),
        "user": str(row.user_id),
        "currency": row.currency,
        "balance": plain(row.balance),
        "reserved": plain(row.reserved),
        "available": plain(row.balance - row.reserved),
        "created_at": _text(row.created_at),
        "entries": [_entry(entry) for entry in entries],
    }


def reservation(row: Reservation) -> dict[str, Any]:
    return {
        "payment_id": str(row.payment_id),
        "wallet": str(row.wallet_id),
        "amount": plain(row.amount),
        "status": str(row.status),
        "created_at": _text(row.created_at),
        "finished_at": _text(row.finished_at),
    }


def _booking(row: Booking) -> dict[str, Any]:
    return {
        "reference": row.reference,
        "status": str(row.status),
        "paid_at": _text(row.paid_at),
    }


def _entry(row: WalletEntry) -> dict[str, Any]:
    return {
        "kind": str(row.kind),
        "amount": plain(row.amount),
        "balance_after": plain(row.balance_after),
        "payment_id": _text(row.payment_id),
        "created_at": _text(row.created_at),
    }


def _text(value: datetime | UUID | str | None) -> str | None:
    if isinstance(value, datetime):
        return value.isoformat()
    return None if value is None else str(value)
