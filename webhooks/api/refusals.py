"""What the money's own refusals look like to a caller. Their texts are written to be shown."""

from __future__ import annotations

from rest_framework.exceptions import APIException

from billing import initiating, ordering, wallets
from billing.money import BadMoney
from webhooks.errors import Refused
from webhooks.providers.base import Malformed

INVALID = (400, "INVALID_REQUEST")

# The first class that fits counts.
_ANSWERS: tuple[tuple[type[Exception], tuple[int, str]], ...] = (
    (Malformed, INVALID),
    (BadMoney, INVALID),
    (ordering.BadOrder, INVALID),
    (initiating.BadInitiation, INVALID),
    (wallets.NoSuchUser, (404, "NO_SUCH_USER")),
    (wallets.NoSuchWallet, (404, "NO_SUCH_WALLET")),
    (wallets.NoSuchReservation, (404, "NO_SUCH_RESERVATION")),
    (ordering.NoSuchPlan, (404, "NO_SUCH_PLAN")),
    (initiating.NoSuchPayment, (404, "NO_SUCH_PAYMENT")),
    (wallets.TooLittleMoney, (409, "INSUFFICIENT_FUNDS")),
    (wallets.OtherReservation, (409, "OTHER_RESERVATION")),
    (ordering.OtherOrder, (409, "OTHER_ORDER")),
    (initiating.OtherInitiation, (409, "OTHER_PAYMENT")),
    (initiating.OtherTxnId, (409, "OTHER_PROVIDER_TXN_ID")),
    (initiating.NameTaken, (409, "NAME_TAKEN")),
    (initiating.WrongWallet, (409, "WRONG_WALLET")),
    # What these modules refuse for a reason that came later than this table.
    (initiating.InitiationRefusal, (409, "REFUSED")),
    (wallets.WalletRefusal, (409, "REFUSED")),
)


def as_refusal(error: Exception) -> APIException | None:
    """None: it is no refusal but a fault."""
    if isinstance(error, APIException):
        return error
    for kind, (http_status, code) in _ANSWERS:
        if isinstance(error, kind):
            return Refused(http_status, code, str(error))
    return None


def no_such(what: str) -> Refused:
    return Refused(404, f"NO_SUCH_{what.upper()}", f"there is no such {what}")
