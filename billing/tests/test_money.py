from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.money import (
    BadMoney,
    exponent,
    parse_amount,
    parse_currency,
    plain,
    same_amount,
)


@pytest.mark.parametrize(
    ("value", "currency", "amount"),
    [
        ("990", "RUB", "990"),
        ("990.5", "RUB", "990.5"),
        ("990.50", "RUB", "990.50"),
        (990, "RUB", "990"),
        (Decimal("990.50"), "RUB", "990.50"),
        (Decimal("9.9e2"), "RUB", "990"),
        ("0.01", "RUB", "0.01"),
        ("1000.00", "KRW", "1000"),
        ("1.234", "KWD", "1.234"),
        ("1.2345", "CLF", "1.2345"),
        ("1.2345", None, "1.2345"),
        ("999999999999999.99", "RUB", "999999999999999.99"),
        ("000990", "RUB", "990"),
    ],
)
def test_an_amount_is_read_exactly(value: Any, currency: str | None, amount: str) -> None:
    parsed = parse_amount(value, currency)
    assert isinstance(parsed, Decimal)
    assert parsed == Decimal(amount)


@pytest.mark.parametrize(
    ("value", "currency"),
    [
        (True, "RUB"),
        (False, "RUB"),
        (1.5, "RUB"),
        (None, "RUB"),
        ([], "RUB"),
        ("", "RUB"),
        ("0", "RUB"),
        (0, "RUB"),
        ("0.00", "RUB"),
        ("-1", "RUB"),
        (-1, "RUB"),
        (Decimal("-0.01"), "RUB"),
        ("1.001", "RUB"),
        ("1.5", "KRW"),
        ("1.0001", "KWD"),
        ("1.00001", None),
        ("1e3", "RUB"),
        ("1E+3000000", "RUB"),
        (Decimal("1E+3000000"), "RUB"),
        (Decimal("1E-3000000"), "RUB"),
        (Decimal("NaN"), "RUB"),
        (Decimal("sNaN"), "RUB"),
        (Decimal("Infinity"), "RUB"),
        ("nan", "RUB"),
        ("inf", "RUB"),
        ("١٢٣", "RUB"),
        ("\uff11\uff12", "RUB"),
        ("1²", "RUB"),
        (" 1", "RUB"),
        ("1\n", "RUB"),
        ("1_000", "RUB"),
        ("1,5", "RUB"),
        ("+1", "RUB"),
        (".5", "RUB"),
        ("5.", "RUB"),
        ("0x10", "RUB"),
        ("1000000000000000", "RUB"),
        (10**15, "RUB"),
        (10**64, "RUB"),
    ],
)
def test_what_is_no_amount_is_refused(value: Any, currency: str) -> None:
    with pytest.raises(BadMoney):
        parse_amount(value, currency)


@pytest.mark.parametrize("value", ["4111111111111111", "41.111", "-4111"])
def test_what_is_refused_is_not_quoted(value: str) -> None:
    with pytest.raises(BadMoney) as refusal:
        parse_amount(value, "RUB")
    assert "41" not in str(refusal.value)


@given(st.decimals(allow_nan=True, allow_infinity=True) | st.integers() | st.text(max_size=12))
def test_whatever_comes_is_a_storable_amount_or_refused(value: Any) -> None:
    try:
        amount = parse_amount(value, "RUB")
    except BadMoney:
        return
    assert 0 < amount < 10**15
    assert amount == amount.quantize(Decimal("0.01"))
    if not isinstance(value, str):
        assert amount == value


@pytest.mark.parametrize(
    ("code", "decimals"), [("RUB", 2), ("USD", 2), ("KRW", 0), ("JPY", 0), ("KWD", 3), ("CLF", 4)]
)
def test_currencies_have_their_own_decimals(code: str, decimals: int) -> None:
    assert exponent(code) == decimals


@pytest.mark.parametrize("code", ["RUB", "rub", "Rub"])
def test_a_currency_is_three_letters(code: str) -> None:
    assert parse_currency(code) == "RUB"


@pytest.mark.parametrize("code", ["", "RU", "RUBL", "РУБ", "R1B", "RUB\n", " RUB", 643, None, True])
def test_what_is_no_currency_is_refused(code: Any) -> None:
    with pytest.raises(BadMoney):
        parse_currency(code)


@pytest.mark.parametrize(
    ("paid", "expected", "currency", "same"),
    [
        ("990.00", "990", "RUB", True),
        ("990.01", "990", "RUB", True),
        ("989.99", "990", "RUB", True),
        ("990.02", "990", "RUB", False),
        ("989.98", "990", "RUB", False),
        ("10.010", "10", "KWD", True),
        ("10.011", "10", "KWD", False),
        ("1000", "1000", "KRW", True),
        ("1001", "1000", "KRW", False),
        ("1000.01", "1000", "KRW", False),
    ],
)
def test_the_tolerance_is_a_hundredth_where_there_are_any(
    paid: str, expected: str, currency: str, same: bool
) -> None:
    assert same_amount(Decimal(paid), Decimal(expected), currency) is same


@pytest.mark.parametrize(
    ("amount", "text"),
    [("10.0000", "10"), ("10.50", "10.5"), ("100", "100"), ("0.0100", "0.01"), ("1E+3", "1000")],
)
def test_amounts_are_shown_plainly(amount: str, text: str) -> None:
    assert plain(Decimal(amount)) == text
