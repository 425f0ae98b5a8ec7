"""When a proven payment is not applied, and why. Each policy is one rule."""

from dataclasses import dataclass

from billing.codes import ErrorCode
from billing.models import Payment
from billing.money import plain, same_amount
from subscriptions.prices import Offer


@dataclass(frozen=True)
class Objection:
    code: ErrorCode
    message: str


def no_such_plan(payment: Payment) -> Objection:
    named = f"plan {payment.plan_code!r}" if payment.plan_code else "default plan"
    return Objection(ErrorCode.PLAN_UNKNOWN, f"there is no active {named}")


def price_objection(payment: Payment, offer: Offer) -> Objection | None:
    paid, currency, price = payment.amount, payment.currency, offer.price
    if paid is None or currency is None:
        message = "the provider gave no amount and currency"
    elif price is None:
        message = f"plan {offer.plan} had no price in {currency}"
    elif not same_amount(paid, price, currency):
        message = f"paid {plain(paid)} {currency}, plan {offer.plan} cost {plain(price)}"
    else:
        return None
    return Objection(ErrorCode.AMOUNT_MISMATCH, message)
