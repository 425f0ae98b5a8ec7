"""Orders: what a payment will be for, said beforehand, once per merchant_uid."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.db import transaction

from billing.models import Booking, Order, Purchase, Wallet
from billing.money import parse_amount, parse_currency
from billing.wallets import NoSuchUser, NoSuchWallet, open_wallet
from subscriptions.models import Plan, User

MAX_UID_CHARS = 255


class BadOrder(ValueError):
    """Not an order that could be paid. The text names the field, never the value."""


class NoSuchPlan(Exception):
    """No plan that can be bought has this code."""


class OtherOrder(Exception):
    """The merchant_uid is taken by an order with other content."""


@dataclass(frozen=True)
class _Content:
    """Whatever two orders must have in common to be the same one."""

    buys: str
    amount: object
    currency: str
    user_id: UUID
    plan_id: UUID | None
    wallet_id: UUID | None


@transaction.atomic
def create_order(
    *,
    merchant_uid: str,
    buys: str,
    user_id: UUID,
    amount: object,
    currency: object,
    plan_code: str | None = None,
    wallet_id: UUID | None = None,
    booking_reference: str | None = None,
) -> tuple[Order, bool]:
    """The order and whether this call made it. The second call with the same content gets the
    first one's; of two calls at once, one inserts and the other waits and finds it."""
    if not merchant_uid.strip() or len(merchant_uid) > MAX_UID_CHARS:
        raise BadOrder(f"merchant_uid must have 1 to {MAX_UID_CHARS} characters")
    code = parse_currency(currency)
    _check_fields(buys, plan_code=plan_code, wallet_id=wallet_id, reference=booking_reference)
    content = _Content(
        buys=buys,
        amount=parse_amount(amount, code),
        currency=code,
        user_id=_user(user_id),
        plan_id=_plan(plan_code) if plan_code is not None else None,
        wallet_id=_wallet(user_id, code, wallet_id) if buys == Purchase.WALLET_TOPUP else None,
    )
    known = Order.objects.filter(merchant_uid=merchant_uid).first()
    if known is None:
        # A plan may be withdrawn later; what was ordered before stays ordered.
        if content.plan_id and not Plan.objects.filter(pk=content.plan_id, is_active=True).exists():
            raise NoSuchPlan("there is no such plan")
        new = Order(merchant_uid=merchant_uid, **vars(content))
        Order.objects.bulk_create([new], ignore_conflicts=True)
        known = Order.objects.get(merchant_uid=merchant_uid)
        if known.pk == new.pk:
            if buys == Purchase.BOOKING:
                Booking.objects.create(order=known, reference=booking_reference)
            return known, True
    _check_same(known, content, booking_reference)
    return known, False


def _check_fields(
    buys: str, *, plan_code: str | None, wallet_id: UUID | None, reference: str | None
) -> None:
    if buys not in (Purchase.SUBSCRIPTION, Purchase.BOOKING, Purchase.WALLET_TOPUP):
        raise BadOrder("buys must be SUBSCRIPTION, BOOKING or WALLET_TOPUP")
    if buys == Purchase.SUBSCRIPTION and plan_code is None:
        raise BadOrder("plan is required for a SUBSCRIPTION")
    if buys != Purchase.SUBSCRIPTION and plan_code is not None:
        raise BadOrder("plan is for a SUBSCRIPTION only")
    if buys != Purchase.WALLET_TOPUP and wallet_id is not None:
        raise BadOrder("wallet is for a WALLET_TOPUP only")
    if buys != Purchase.BOOKING and reference is not None:
        raise BadOrder("reference is for a BOOKING only")


def _user(user_id: UUID) -> UUID:
    if not User.objects.filter(pk=user_id).exists():
        raise NoSuchUser("there is no such user")
    return user_id


def _plan(code: str) -> UUID:
    plan = Plan.objects.filter(code=code).first()
    if plan is None:
        raise NoSuchPlan("there is no such plan")
    return plan.pk


def _wallet(user_id: UUID, currency: str, wallet_id: UUID | None) -> UUID:
    """Somebody else's wallet is as good as none: an order tops up its own user's."""
    if wallet_id is None:
        return open_wallet(user_id=user_id, currency=currency).pk
    wallet = Wallet.objects.filter(pk=wallet_id, user_id=user_id).first()
    if wallet is None:
        raise NoSuchWallet("this user has no such wallet")
    if wallet.currency != currency:
        raise BadOrder("currency must be that of the wallet")
    return wallet.pk


def _check_same(known: Order, content: _Content, reference: str | None) -> None:
    same = all(getattr(known, name) == value for name, value in vars(content).items())
    if same and content.buys == Purchase.BOOKING:
        same = known.booking.reference == reference
    if not same:
        raise OtherOrder("this merchant_uid belongs to an order with other content")
