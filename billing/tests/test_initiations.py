from __future__ import annotations

import json
from decimal import Decimal
from uuid import UUID, uuid4

import pytest

from billing.initiations import BadInitiation, Initiation, parse_initiation

PAYMENT = UUID("0f5f6f1e-7c1d-4f8e-9d2b-0a5b7e1c2d3f")
MESSAGE = {
    "payment_id": str(PAYMENT),
    "user": "7b0c1f5e-1111-4222-8333-444455556666",
    "amount": "40.50",
    "currency": "rub",
    "provider": "tilda",
}


def test_it_reads_what_is_asked_for() -> None:
    assert parse_initiation(MESSAGE) == Initiation(
        payment_id=PAYMENT,
        user_id=UUID(str(MESSAGE["user"])),
        amount=Decimal("40.50"),
        currency="RUB",
        provider="tilda",
    )
    wallet = uuid4()
    full = parse_initiation(
        {
            **MESSAGE,
            "payment_id": str(PAYMENT).upper(),
            "amount": 40,
            "wallet": str(wallet),
            "provider_txn_id": 17,
            "merchant_uid": "order 1 ",
            "colour": "green",
        }
    )
    assert (full.payment_id, full.amount, full.wallet_id) == (PAYMENT, Decimal(40), wallet)
    assert (full.provider_txn_id, full.merchant_uid) == ("17", "order 1 ")


NO_UUIDS = [7, True, "", "x", "0" * 32, f"{{{PAYMENT}}}", f"urn:uuid:{PAYMENT}", f" {PAYMENT}"]
NO_IDS = [True, 1.5, [], {}, "", "  ", "x" * 256, "a\0", "\ud800", "a\nb"]


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("payment_id", [None, *NO_UUIDS]),
        ("user", [None, *NO_UUIDS]),
        ("wallet", NO_UUIDS),
        ("amount", [None, True, 1.5, "", "1e3", "-1", 0, "0.00", "1.001", "NaN", Decimal("1E+99")]),
        ("currency", [None, "", "RU", "РУБ", 643]),
        ("provider", [None, "x" * 65, *NO_IDS]),
        ("provider_txn_id", NO_IDS),
        ("merchant_uid", NO_IDS),
    ],
)
def test_it_names_the_field_that_is_wrong_and_not_its_value(
    field: str, values: list[object]
) -> None:
    for value in values:
        with pytest.raises(BadInitiation, match=field):
            parse_initiation({**MESSAGE, field: value})


def test_what_is_missing_is_named() -> None:
    for field in MESSAGE:
        with pytest.raises(BadInitiation, match=field):
            parse_initiation({name: value for name, value in MESSAGE.items() if name != field})


def test_an_optional_field_may_be_null() -> None:
    nulls = json.loads('{"wallet": null, "provider_txn_id": null, "merchant_uid": null}')
    assert parse_initiation({**MESSAGE, **nulls}) == parse_initiation(MESSAGE)
