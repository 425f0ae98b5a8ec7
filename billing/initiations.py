"""What somebody asks for who wants a payment started, read strictly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

from billing.money import BadMoney, parse_amount, parse_currency

# As wide as their columns: an id is never cut.
_MAX_ID_CHARS = 255
_MAX_PROVIDER_CHARS = 64


class InitiationRefusal(Exception):
    """Why a payment was not started, or not named. The text may be shown to whoever asked."""


class BadInitiation(InitiationRefusal):
    """The text names the field and the rule, never the value."""


class OtherInitiation(InitiationRefusal):
    """A payment of this id was started, and not the one that was asked for."""


class NameTaken(InitiationRefusal):
    """Another payment goes by this name."""


class OtherTxnId(InitiationRefusal):
    pass


class WrongWallet(InitiationRefusal):
    pass


class NoSuchPayment(InitiationRefusal):
    pass


@dataclass(frozen=True, kw_only=True)
class Initiation:
    payment_id: UUID
    user_id: UUID
    amount: Decimal
    currency: str
    provider: str
    provider_txn_id: str | None = None
    wallet_id: UUID | None = None
    merchant_uid: str | None = None


def parse_initiation(data: Mapping[str, object]) -> Initiation:
    """{"payment_id", "user", "amount", "currency", "provider", "wallet"?, "provider_txn_id"?,
    "merchant_uid"?}, from REST and from messages. Fields that we do not know are ignored."""
    payment_id, user_id = _uuid(data, "payment_id"), _uuid(data, "user")
    if payment_id is None or user_id is None:
        raise BadInitiation("payment_id and user are required")
    try:
        currency = parse_currency(data.get("currency"))
        amount = parse_amount(data.get("amount"), currency)
    except BadMoney as bad:
        raise BadInitiation(str(bad)) from bad
    return Initiation(
        payment_id=payment_id,
        user_id=user_id,
        amount=amount,
        currency=currency,
        provider=parse_id("provider", data.get("provider"), max_chars=_MAX_PROVIDER_CHARS),
        provider_txn_id=_optional_id(data, "provider_txn_id"),
        wallet_id=_uuid(data, "wallet"),
        merchant_uid=_optional_id(data, "merchant_uid"),
    )


def parse_id(name: str, value: object, *, max_chars: int = _MAX_ID_CHARS) -> str:
    """As webhooks are read: compared exactly, and an integer is its decimal digits. What is not
    printable (NUL and halves of surrogate pairs among it) PostgreSQL might not even store."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise BadInitiation(f"{name} must be a string")
    if not value.strip():
        raise BadInitiation(f"{name} must not be blank")
    if len(value) > max_chars:
        raise BadInitiation(f"{name} is longer than {max_chars} characters")
    if not value.isprintable():
        raise BadInitiation(f"{name} has characters that are not printable")
    return value


def _optional_id(data: Mapping[str, object], name: str) -> str | None:
    value = data.get(name)
    return None if value is None else parse_id(name, value)


def _uuid(data: Mapping[str, object], name: str) -> UUID | None:
    """Python's UUID also takes braces, a URN and hyphens anywhere; one spelling is enough."""
    value = data.get(name)
    if value is None or isinstance(value, UUID):
        return value
    try:
        parsed = UUID(value) if isinstance(value, str) else None
    except ValueError:
        parsed = None
    if parsed is None or str(parsed) != str(value).lower():
        raise BadInitiation(f"{name} must be a UUID")
    return parsed
