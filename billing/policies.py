"""When a proven payment is not applied, and why. Each policy is one rule."""

from dataclasses import dataclass
from decimal import Decimal

from billing.codes import ErrorCode
from billing.models import Order, OrderStatus, Payment
from billing.money import plain, same_amount


@dataclass(frozen=True)
class Objection:
    code: ErrorCode
    message: str


@dataclass(frozen=True)
class Price:
    """What should have been paid. No amount: it was not on sale in that currency."""

    amount: Decimal | None
    currency: str
    # "plan monthly", "order A-17": for the person who reads the objection.
    of: str


def nobody_to_give_it_to(payment: Payment) -> Objection:
    if payment.email:
        return Objection(ErrorCode.USER_MISSING, "no user has this e-mail yet")
    if payment.merchant_uid:
        message = "the provider gave no e-mail, and there is no order of that number yet"
        return Objection(ErrorCode.UNLINKED_PAYMENT, message)
    return Objection(ErrorCode.UNLINKED_PAYMENT, "the provider gave no e-mail")


def no_such_plan(payment: Payment) -> Objection:
    named = f"plan {payment.plan_code!r}" if payment.plan_code else "default plan"
    return Objection(ErrorCode.PLAN_UNKNOWN, f"there is no active {named}")


def price_objection(payment: Payment, price: Price) -> Objection | None:
    paid, currency = payment.amount, payment.currency
    if paid is None or currency is None:
        message = "the provider gave no amount and currency"
    elif price.amount is None:
        message = f"{price.of} had no price in {currency}"
    elif currency != price.currency or not same_amount(paid, price.amount, currency):
        asked = plain(price.amount) + ("" if currency == price.currency else f" {price.currency}")
        message = f"paid {plain(paid)} {currency}, {price.of} cost {asked}"
    else:
        return None
    return Objection(ErrorCode.AMOUNT_MISMATCH, message)


NO_WALLET_MONEY = Objection(
    ErrorCode.LATE_SUCCESS, "it succeeded although its wallet had had too little money for it"
)


def order_objection(order: Order, *, overruled: bool) -> Objection | None:
    if order.status == OrderStatus.PAID:
        # Not even a person can make one order be paid twice: the first must be taken back first.
        return Objection(ErrorCode.ORDER_ALREADY_PAID, f"order {order} was paid before")
    if order.status != OrderStatus.PENDING and not overruled:
        return Objection(ErrorCode.ORDER_CLOSED, f"order {order} is {order.status}")
    return None
