"""What a message says of the payment it is about: all of it, as it stands after the change."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from billing.models import Payment
from billing.money import plain


def payment_snapshot(payment: Payment) -> dict[str, Any]:
    return {
        "payment_id": str(payment.pk),
        "provider": payment.provider,
        "external_payment_id": payment.external_payment_id,
        "provider_txn_id": payment.provider_txn_id,
        "merchant_uid": payment.merchant_uid,
        "user_id": _text(payment.user_id),
        "status": str(payment.status),
        "amount": None if payment.amount is None else plain(payment.amount),
        "currency": payment.currency,
        "amount_refunded": plain(payment.amount_refunded),
        "paid_at": _text(payment.paid_at),
        "applied_at": _text(payment.subscription_applied_at),
        "created_at": _text(payment.created_at),
    }


def _text(value: datetime | UUID | None) -> str | None:
    if isinstance(value, datetime):
        return value.isoformat()
    return None if value is None else str(value)
