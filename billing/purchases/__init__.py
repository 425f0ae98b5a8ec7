"""The one place that knows what each kind of purchase gives, and how it is taken back."""

from billing.models import Purchase
from billing.purchases import bookings, spendings, subscription_time, topups
from billing.purchases.base import Kind

_KINDS: dict[str, Kind] = {
    Purchase.SUBSCRIPTION: subscription_time,
    Purchase.BOOKING: bookings,
    Purchase.WALLET_TOPUP: topups,
    Purchase.WALLET_SPENDING: spendings,
}


def kind_of(purchase: str) -> Kind:
    return _KINDS[purchase]
