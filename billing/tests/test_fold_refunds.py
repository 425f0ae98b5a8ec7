"""What went back, and what follows from it, whatever the order in which it was told."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import permutations
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from billing.facts import FactKind
from billing.fold import Folded, fold
from billing.models import Fact

START = datetime(2026, 1, 1, tzinfo=UTC)
STAFF = (FactKind.STAFF_REVOKED, FactKind.STAFF_REINSTATED)


def _fact(kind: FactKind, key: int = 0, **fields: Any) -> Fact:
    given = {"amount": None, "currency": "RUB", "occurred_at": None, "received_at": START, **fields}
    given = {"id": key + 1, **given}
    return Fact(event_id=UUID(int=key), event_key=f"e{key:02}", kind=kind, **given)


def _told(*facts: tuple[FactKind, dict[str, Any]]) -> list[Fact]:
    return [_fact(kind, key, **fields) for key, (kind, fields) in enumerate(facts)]


def _paid(amount: int = 100) -> tuple[FactKind, dict[str, Any]]:
    return FactKind.PAID, {"amount": Decimal(amount)}


def _part(refund_id: str | None, amount: int | None, so_far: int | None = None) -> Any:
    return FactKind.PARTIALLY_REFUNDED, {
        "refund_id": refund_id,
        "amount": None if amount is None else Decimal(amount),
        "amount_refunded": None if so_far is None else Decimal(so_far),
    }


def _refunded(refund_id: str | None = None, **fields: Any) -> tuple[FactKind, dict[str, Any]]:
    return FactKind.REFUNDED, {"refund_id": refund_id, **fields}


def _failed(refund_id: str | None, amount: int | None = None) -> tuple[FactKind, dict[str, Any]]:
    told = None if amount is None else Decimal(amount)
    return FactKind.REFUND_FAILED, {"refund_id": refund_id, "amount": told}


LOST: Any = (FactKind.DISPUTE_LOST, {})
WON: Any = (FactKind.DISPUTE_WON, {})
DISPUTED: Any = (FactKind.DISPUTED, {})


@pytest.mark.parametrize(
    ("facts", "status", "refunded", "reinstatable"),
    [
        ([_paid()], "SUCCEEDED", 0, False),
        ([_paid(), _part("a", 30)], "SUCCEEDED", 30, False),
        ([_paid(), _part("a", 30), _part("a", 30)], "SUCCEEDED", 30, False),
        ([_paid(), _part("a", 30), _part("b", 30)], "SUCCEEDED", 60, False),
        ([_paid(), _part("a", 30), _part("b", 70)], "REFUNDED", 100, False),
        ([_paid(), _part("a", 80), _part("b", 80)], "REFUNDED", 100, False),
        ([_paid(), _part("a", 30, 50)], "SUCCEEDED", 50, False),
        ([_paid(), _part("a", 30, 30), _part("b", 30, 30)], "SUCCEEDED", 60, False),
        ([_paid(), _part("a", 30, 100)], "REFUNDED", 100, False),
        ([_paid(), _part(None, 30), _part(None, 30)], "SUCCEEDED", 30, False),
        # The payment's own sum told in a partial refund is not the refund's.
        ([_paid(), _part("a", 100)], "SUCCEEDED", 0, False),
        ([_paid(), _part("a", 100, 40)], "SUCCEEDED", 40, False),
        ([_paid(), _refunded("r")], "REFUNDED", 100, False),
        ([_paid(), _refunded(amount_refunded=Decimal(40))], "SUCCEEDED", 40, False),
        ([_paid(), _refunded(amount_refunded=Decimal(100))], "REFUNDED", 100, False),
        ([_paid(), _part("a", 30), _failed("a")], "SUCCEEDED", 0, False),
        ([_paid(), _part("a", 30), _failed("a", 30)], "SUCCEEDED", 0, False),
        ([_paid(), _part("a", 30), _part("b", 20), _failed("a", 30)], "SUCCEEDED", 20, False),
        ([_paid(), _failed("a", 30)], "SUCCEEDED", 0, False),
        ([_paid(), _refunded("r"), _failed("r")], "REFUNDED", 0, True),
        ([_paid(), _refunded("r"), _failed("r", 100)], "REFUNDED", 0, True),
        ([_paid(), _refunded(), _failed(None)], "REFUNDED", 0, True),
        # Another refund took it back as well.
        ([_paid(), _refunded("r"), _refunded("s"), _failed("r")], "REFUNDED", 100, False),
        ([_paid(), _failed("x"), _refunded("r")], "REFUNDED", 100, False),
        ([_paid(), DISPUTED], "SUCCEEDED", 0, False),
        ([_paid(), DISPUTED, WON], "SUCCEEDED", 0, False),
        ([_paid(), DISPUTED, LOST], "REFUNDED", 100, False),
        ([_paid(), LOST, WON], "REFUNDED", 0, True),
        ([_paid(), LOST, WON, _refunded("r")], "REFUNDED", 100, False),
        ([_refunded("r")], "REFUNDED", 0, False),
    ],
)
def test_what_went_back(facts: list[Any], status: str, refunded: int, reinstatable: bool) -> None:
    for order in permutations(facts) if len(facts) < 5 else [facts]:
        folded = fold(_told(*order))
        assert folded.status == status
        assert folded.amount_refunded == refunded
        assert folded.reinstatable is reinstatable


def test_a_failed_refund_is_kept_as_failed() -> None:
    folded = fold(_told(_paid(), _part("a", 30), _part("b", 20), _failed("a")))

    assert {(told.refund_id, told.amount, told.failed) for told in folded.refunds} == {
        ("a", Decimal(30), True),
        ("b", Decimal(20), False),
    }


@pytest.mark.parametrize(
    ("facts", "status", "gives"),
    [
        ([_paid(), (STAFF[0], {})], "SUCCEEDED", False),
        ([_paid(), LOST, WON, (STAFF[1], {})], "SUCCEEDED", True),
        # The last word counts.
        ([_paid(), DISPUTED, (STAFF[0], {}), WON, (STAFF[1], {})], "SUCCEEDED", True),
        # A person can reinstate only what did not stand.
        ([_paid(), _refunded("r"), (STAFF[1], {})], "REFUNDED", False),
        ([_paid(), LOST, WON, (STAFF[1], {}), _refunded("r")], "REFUNDED", False),
    ],
)
def test_what_a_person_decided_stands(facts: list[Any], status: str, gives: bool) -> None:
    folded = fold(_told(*facts))

    assert (folded.status, folded.gives) == (status, gives)


_FACTS = st.lists(
    st.builds(
        _fact,
        st.sampled_from([kind for kind in FactKind if kind not in STAFF]),
        amount=st.sampled_from([None, Decimal(30), Decimal(70), Decimal(100)]),
        amount_refunded=st.sampled_from([None, None, Decimal(30), Decimal(100)]),
        refund_id=st.sampled_from([None, "a", "b"]),
        occurred_at=st.sampled_from([None, START, START + timedelta(1), START + timedelta(2)]),
        email=st.sampled_from([None, "a@example.com", "b@example.com"]),
        merchant_uid=st.sampled_from([None, "one", "other"]),
    ),
    max_size=9,
)


def _arriving(facts: list[Fact], order: list[int]) -> list[Fact]:
    """The same facts; ids and times of arrival are those of this order."""
    return [
        _fact(
            FactKind(facts[key].kind),
            key,
            id=arrival + 1,
            received_at=START + timedelta(days=9, seconds=arrival),
            **{
                name: getattr(facts[key], name)
                for name in (
                    "amount",
                    "amount_refunded",
                    "refund_id",
                    "occurred_at",
                    "email",
                    "merchant_uid",
                )
            },
        )
        for arrival, key in enumerate(order)
    ]


def _without_times_of_arrival(folded: Folded) -> Folded:
    told = tuple(sorted(folded.refunds, key=lambda refund: refund.refund_id))
    return replace(folded, paid_at=None, failed_at=None, canceled_at=None, refunds=told)


@settings(max_examples=500, deadline=None)
@given(_FACTS, st.data())
def test_no_shuffle_changes_what_the_facts_say(facts: list[Fact], data: st.DataObject) -> None:
    in_order = list(range(len(facts)))
    shuffled = data.draw(st.permutations(in_order))

    one, other = (fold(_arriving(facts, order)) for order in (in_order, shuffled))

    assert _without_times_of_arrival(one) == _without_times_of_arrival(other)


@settings(max_examples=500, deadline=None)
@given(_FACTS, st.data())
def test_a_fact_told_again_changes_nothing(facts: list[Fact], data: st.DataObject) -> None:
    """An event that is read again the same way counts once."""
    order = list(range(len(facts)))
    repeats = data.draw(st.lists(st.sampled_from(order), max_size=3)) if order else []

    one, other = fold(_arriving(facts, order)), fold(_arriving(facts, [*order, *repeats]))

    assert _without_times_of_arrival(one) == _without_times_of_arrival(other)


@settings(max_examples=500, deadline=None)
@given(_FACTS)
def test_never_more_goes_back_than_came(facts: list[Fact]) -> None:
    folded = fold(_arriving(facts, list(range(len(facts)))))

    assert folded.amount_refunded >= 0
    if folded.amount is not None:
        assert folded.amount_refunded <= folded.amount
    if folded.gives and folded.amount:
        assert folded.amount_refunded < folded.amount
