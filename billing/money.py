"""Amounts, exactly: Decimal in, Decimal out, never a float, nothing rounded."""

import re
from decimal import Decimal

# ISO 4217's minor units, where they are not two.
_DECIMALS = {
    0: "BIF CLP DJF GNF ISK JPY KMF KRW PYG RWF UGX UYI VND VUV XAF XOF XPF",
    3: "BHD IQD JOD KWD LYD OMR TND",
    4: "CLF UYW",
}
_EXPONENTS = {code: decimals for decimals, codes in _DECIMALS.items() for code in codes.split()}
# numeric(19,4) in the database.
_WHOLE_DIGITS, _FRACTION_DIGITS = 15, 4
_DECIMAL_TEXT = re.compile(rf"[0-9]{{1,{_WHOLE_DIGITS}}}(?:\.[0-9]{{1,{_FRACTION_DIGITS}}})?")
_CURRENCY = re.compile(r"[A-Za-z]{3}")
TOLERANCE = Decimal("0.01")


class BadMoney(ValueError):
    """Not an amount we would put in the books. The text names the rule, never the value."""


def exponent(currency: str) -> int:
    return _EXPONENTS.get(currency, 2)


def parse_currency(value: object) -> str:
    if not isinstance(value, str) or not _CURRENCY.fullmatch(value):
        raise BadMoney("currency must be a three-letter code")
    return value.upper()


def parse_amount(value: object, currency: str | None, *, allow_zero: bool = False) -> Decimal:
    """A decimal string or a JSON number (read as int or Decimal) that the currency can express.

    Trailing zeros are no extra decimals: "1000.00" KRW is 1000 won, exactly.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | Decimal):
        raise BadMoney("amount must be a decimal string or a number")
    text = value if isinstance(value, str) else _plain_text(Decimal(value))
    if not _DECIMAL_TEXT.fullmatch(text):
        raise BadMoney("amount must be a plain positive decimal")
    amount = Decimal(text)
    decimals = exponent(currency) if currency else _FRACTION_DIGITS
    if amount != amount.quantize(Decimal(1).scaleb(-decimals)):
        raise BadMoney(f"amount has more than the {decimals} decimals of its currency")
    if not amount and not allow_zero:
        raise BadMoney("amount must be greater than zero")
    return amount


def same_amount(paid: Decimal, expected: Decimal, currency: str) -> bool:
    """Within 0.01; exactly in currencies that have no decimals."""
    tolerance = TOLERANCE if exponent(currency) else Decimal(0)
    return abs(paid - expected) <= tolerance


def plain(amount: Decimal) -> str:
    """10.0000 from the database reads 10."""
    return f"{amount:f}".rstrip("0").rstrip(".") if "." in f"{amount:f}" else f"{amount:f}"


def _plain_text(number: Decimal) -> str:
    """A JSON number may be written 1.5e3. Formatting Decimal("1E+3000000") would take minutes,
    so its size is looked at first."""
    if not number.is_finite() or abs(number.adjusted()) > _WHOLE_DIGITS + _FRACTION_DIGITS:
        raise BadMoney("amount is out of range")
    return f"{number:f}"
