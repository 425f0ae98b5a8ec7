"""PaymentInitiated messages, for the tests of those who consume them."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any
from uuid import uuid4

from billing.models import EntryKind, Wallet
from billing.wallets import credit, open_wallet
from subscriptions.models import User


def asked(buyer: User, **fields: Any) -> dict[str, Any]:
    return {
        "payment_id": str(uuid4()),
        "user": str(buyer.pk),
        "amount": "100",
        "currency": "RUB",
        "provider": "tilda",
        **fields,
    }


def body(said: object) -> bytes:
    return json.dumps(said).encode()


def wallet_with(user: User, amount: int) -> Wallet:
    wallet = open_wallet(user_id=user.pk, currency="RUB")
    if amount:
        credit(wallet_id=wallet.pk, amount=Decimal(amount), kind=EntryKind.MANUAL, payment_id=None)
    return wallet
