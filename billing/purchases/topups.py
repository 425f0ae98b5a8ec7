from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from uuid import UUID

from billing import wallets
from billing.codes import ErrorCode
from billing.models import EntryKind, Grant, Purchase
from billing.money import plain
from billing.policies import Objection
from billing.purchases.base import Act, Bargain, Effect


def give(bargain: Bargain) -> Effect | Objection:
    """What was paid is credited, also where a person let another sum pass."""
    order, payment = bargain.order, bargain.payment
    if order is None or order.wallet_id is None:
        raise ValueError("a top-up is bought by an order for a wallet")
    if payment.amount is None or payment.currency != order.currency:
        return Objection(
            ErrorCode.AMOUNT_MISMATCH, f"only {order.currency} can go into this wallet"
        )
    return _credit(order.wallet_id, payment.amount, EntryKind.TOPUP, payment.pk, Act.GAVE)


def take_back(grant: Grant, now: datetime) -> Effect | Objection:
    return _debit(grant, _left(grant), EntryKind.TOPUP_REVOKED, Act.TOOK_BACK)


def shorten(grant: Grant, by: Decimal, whole: Decimal, now: datetime) -> Effect | Objection:
    if by >= 0:
        return _debit(grant, by, EntryKind.TOPUP_REVOKED, Act.SHORTENED)
    wallet_id, _ = _target(grant)
    return _credit(wallet_id, -by, EntryKind.TOPUP_REINSTATED, grant.payment_id, Act.REINSTATED)


def reinstate(grant: Grant, now: datetime) -> Effect | Objection:
    wallet_id, _ = _target(grant)
    return _credit(
        wallet_id, _left(grant), EntryKind.TOPUP_REINSTATED, grant.payment_id, Act.REINSTATED
    )


def _debit(grant: Grant, amount: Decimal, kind: EntryKind, act: Act) -> Effect | Objection:
    wallet_id, _ = _target(grant)
    if amount:
        try:
            wallets.debit(
                wallet_id=wallet_id, amount=amount, kind=kind, payment_id=grant.payment_id
            )
        except wallets.TooLittleMoney:
            return Objection(
                ErrorCode.WALLET_SHORT,
                f"{plain(amount)} should be taken back, but the wallet has too little",
            )
    return _effect(act, wallet_id, amount)


def _credit(
    wallet_id: UUID, amount: Decimal, kind: EntryKind, payment_id: UUID, act: Act
) -> Effect:
    if amount:
        wallets.credit(wallet_id=wallet_id, amount=amount, kind=kind, payment_id=payment_id)
    return _effect(act, wallet_id, amount)


def _left(grant: Grant) -> Decimal:
    """What partial refunds took is gone already."""
    return max(_whole(grant) - grant.shortened_for, Decimal(0))


def _whole(grant: Grant) -> Decimal:
    return _target(grant)[1]


def _target(grant: Grant) -> tuple[UUID, Decimal]:
    if grant.wallet_id is None or grant.amount is None:
        raise ValueError("this grant is not of a wallet")
    return grant.wallet_id, grant.amount


def _effect(act: Act, wallet_id: UUID, amount: Decimal) -> Effect:
    return Effect(act=act, kind=Purchase.WALLET_TOPUP, wallet_id=wallet_id, amount=amount)
