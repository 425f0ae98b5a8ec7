"""The state of a payment does not depend on the order in which its events arrive."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import combinations_with_replacement, permutations, product
from uuid import UUID

import pytest

from billing.facts import FactKind
from billing.fold import Folded, fold, status_after
from billing.models import Fact

START = datetime(2024, 1, 1, tzinfo=UTC)
PENDING, PAID, FAILED = FactKind.PENDING, FactKind.PAID, FactKind.FAILED
CANCELED, REFUNDED = FactKind.CANCELED, FactKind.REFUNDED
# A kind, and the provider's own time of it in hours, or None where it gives none.
Told = tuple[FactKind, int | None]


def _fact(told: Told, key: int, *, arrival: int) -> Fact:
    kind, hours = told
    return Fact(
        id=arrival + 1,
        event_id=UUID(int=key),
        event_key=f"e{key}",
        kind=kind,
        amount=Decimal(key + 1),
        currency="RUB",
        email=f"{key}@example.com",
        plan_code=f"plan{key}",
        occurred_at=None if hours is None else START + timedelta(hours=hours),
        received_at=START + timedelta(days=1, minutes=arrival),
    )


def _arrive(told: Sequence[Told], order: Iterable[int] | None = None) -> Folded:
    order = range(len(told)) if order is None else order
    return fold(_fact(told[key], key, arrival=number) for number, key in enumerate(order))


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_order_of_arrival_changes_the_end(size: int) -> None:
    """Every set of facts of every kind, each with one of two times or none."""
    # What a person decides is decided about what is known by then.
    kinds = [kind for kind in FactKind if not kind.startswith("STAFF")]
    kinds_and_times = list(product(kinds, (None, 1, 2)))
    for told in combinations_with_replacement(kinds_and_times, size):
        ends = {_end(_arrive(told, order)) for order in permutations(range(size))}
        assert len(ends) == 1, told


KINDS = (PENDING, PAID, FAILED, CANCELED, REFUNDED)


def test_no_order_of_five_facts_without_times_changes_the_end() -> None:
    for kinds in combinations_with_replacement(KINDS, 5):
        told = [(kind, None) for kind in kinds]
        ends = {_end(_arrive(told, order)) for order in permutations(range(5))}
        assert len(ends) == 1, told


def test_no_order_of_five_facts_with_times_changes_the_end() -> None:
    """Every order of times, arriving forwards and backwards."""
    for kinds in product(KINDS, repeat=5):
        told = list(zip(kinds, range(5), strict=True))
        ends = {_end(_arrive(told, order)) for order in ((0, 1, 2, 3, 4), (4, 3, 2, 1, 0))}
        assert len(ends) == 1, told


def _end(folded: Folded) -> tuple[object, ...]:
    """Everything but the times, which are those of arrival where the provider gives none."""
    told = (folded.amount, folded.currency, folded.amount_refunded, folded.email, folded.plan_code)
    return (*_state(folded), folded.amounts_disagree, *told)


def _state(folded: Folded) -> tuple[str, bool]:
    return folded.status, folded.cancel_unconfirmed


@pytest.mark.parametrize(
    ("so_far", "then", "status"),
    [
        ([], PENDING, "PROCESSING"),
        ([], PAID, "SUCCEEDED"),
        ([], FAILED, "FAILED"),
        ([], CANCELED, "CANCELED"),
        ([], REFUNDED, "REFUNDED"),
        ([PENDING], PENDING, "PROCESSING"),
        ([PENDING], PAID, "SUCCEEDED"),
        ([PENDING], FAILED, "FAILED"),
        ([PENDING], CANCELED, "CANCELED"),
        ([PENDING], REFUNDED, "REFUNDED"),
        ([FAILED], PENDING, "FAILED"),
        ([FAILED], PAID, "SUCCEEDED"),
        ([FAILED], CANCELED, "CANCELED"),
        ([FAILED], REFUNDED, "REFUNDED"),
        ([CANCELED], PENDING, "CANCELED"),
        ([CANCELED], PAID, "SUCCEEDED"),
        ([CANCELED], FAILED, "CANCELED"),
        ([CANCELED], REFUNDED, "REFUNDED"),
        ([PAID], PENDING, "SUCCEEDED"),
        ([PAID], PAID, "SUCCEEDED"),
        ([PAID], FAILED, "SUCCEEDED"),
        ([PAID], CANCELED, "CANCELED"),
        ([PAID], REFUNDED, "REFUNDED"),
        ([PAID, CANCELED], PAID, "SUCCEEDED"),
        ([PAID, CANCELED], FAILED, "CANCELED"),
        ([PAID, CANCELED], REFUNDED, "REFUNDED"),
        ([REFUNDED], PENDING, "REFUNDED"),
        ([REFUNDED], PAID, "REFUNDED"),
        ([REFUNDED], FAILED, "REFUNDED"),
        ([REFUNDED], CANCELED, "REFUNDED"),
        ([PAID], FactKind.DISPUTED, "SUCCEEDED"),
        ([PAID], FactKind.PARTIALLY_REFUNDED, "SUCCEEDED"),
    ],
)
def test_the_moves_are_those_of_the_table(
    so_far: list[FactKind], then: FactKind, status: str
) -> None:
    told = [(kind, hour) for hour, kind in enumerate([*so_far, then])]
    assert _arrive(told).status == status


@pytest.mark.parametrize(
    ("paid_at", "canceled_at", "status", "unconfirmed"),
    [
        (1, 2, "CANCELED", False),
        (2, 1, "SUCCEEDED", False),
        (1, 1, "SUCCEEDED", True),
        (None, 1, "SUCCEEDED", True),
        (1, None, "SUCCEEDED", True),
        (None, None, "SUCCEEDED", True),
    ],
)
def test_only_the_providers_times_let_a_cancel_undo_a_success(
    paid_at: int | None, canceled_at: int | None, status: str, unconfirmed: bool
) -> None:
    told = [(PAID, paid_at), (CANCELED, canceled_at)]
    for order in permutations(range(2)):
        assert _state(_arrive(told, order)) == (status, unconfirmed)


def test_a_refund_settles_the_doubt_about_a_cancel() -> None:
    folded = _arrive([(PAID, None), (CANCELED, None), (REFUNDED, None)])
    assert _state(folded) == ("REFUNDED", False)


def test_nothing_told_is_received() -> None:
    folded = fold([])
    assert folded.status == "RECEIVED"
    assert (folded.amount, folded.currency, folded.paid_at) == (None, None, None)


def test_times_are_the_providers_or_else_of_arrival() -> None:
    folded = _arrive([(FAILED, 1), (PAID, 2), (CANCELED, None)])
    assert folded.failed_at == START + timedelta(hours=1)
    assert folded.paid_at == START + timedelta(hours=2)
    assert folded.canceled_at == START + timedelta(days=1, minutes=2)


def test_the_time_of_payment_is_the_one_that_was_told() -> None:
    fact = _fact((PAID, 2), 0, arrival=0)
    fact.paid_at = START
    assert fold([fact]).paid_at == START


def test_the_sum_is_that_of_the_success() -> None:
    """Not of a refund or a failed try, which may be about another sum."""
    refund, success = _fact((REFUNDED, 1), 0, arrival=0), _fact((PAID, 2), 1, arrival=1)
    pending = _fact((PENDING, None), 2, arrival=2)
    assert fold([refund, success, pending]).amount == success.amount
    success.amount = None
    assert fold([refund, success]).amount is None
    assert fold([refund, success, pending]).amount == pending.amount


def test_the_first_success_tells_whose_it_is_and_of_what() -> None:
    failed, first, second = (
        _fact(told, key, arrival=9 - key)
        for key, told in enumerate([(FAILED, 0), (PAID, 1), (PAID, 2)])
    )
    folded = fold([second, failed, first])
    assert (folded.email, folded.plan_code) == (first.email, first.plan_code)
    first.email = first.plan_code = None
    folded = fold([second, failed, first])
    assert (folded.email, folded.plan_code) == (second.email, second.plan_code)
    second.email = None
    assert fold([second, failed, first]).email == failed.email


def test_an_event_that_was_read_again_counts_as_it_was_read_last() -> None:
    before, after = _fact((FAILED, 1), 0, arrival=0), _fact((PAID, 1), 0, arrival=1)
    assert fold([before, after]).status == fold([after, before]).status == "SUCCEEDED"
    before, after = _fact((PAID, 1), 0, arrival=0), _fact((FAILED, 1), 0, arrival=1)
    assert fold([before, after]).status == fold([after, before]).status == "FAILED"


def test_what_was_refunded_is_the_largest_total_told() -> None:
    success = _fact((PAID, 1), 9, arrival=0)
    parts = [_fact((FactKind.PARTIALLY_REFUNDED, None), key, arrival=key) for key in (1, 2)]
    parts[0].amount_refunded, parts[1].amount_refunded = Decimal(7), Decimal(3)
    assert fold([success]).amount_refunded == 0
    assert fold([success, *parts]).amount_refunded == 7
    whole = _fact((REFUNDED, None), 3, arrival=3)
    assert fold([success, *parts, whole]).amount_refunded == success.amount


@pytest.mark.parametrize(
    ("second", "disagree"),
    [
        ((Decimal("990.00"), "RUB"), False),
        ((Decimal("990.01"), "RUB"), False),
        ((None, None), False),
        ((Decimal(5), "RUB"), True),
        ((Decimal(990), "USD"), True),
    ],
)
def test_two_successes_that_tell_different_sums_disagree(
    second: tuple[Decimal | None, str | None], disagree: bool
) -> None:
    facts = [_fact((PAID, 1), 0, arrival=0), _fact((PAID, 2), 1, arrival=1)]
    facts[0].amount, facts[0].currency = Decimal(990), "RUB"
    facts[1].amount, facts[1].currency = second
    assert fold(facts).amounts_disagree is disagree
    assert fold(reversed(facts)).amounts_disagree is disagree


def test_where_a_kind_leads() -> None:
    assert status_after(PAID) == "SUCCEEDED"
    assert status_after(FactKind.DISPUTED) is None
    assert status_after(FactKind.PARTIALLY_REFUNDED) is None


def test_a_success_without_a_time_may_have_come_after_the_cancel() -> None:
    folded = _arrive([(PAID, 1), (CANCELED, 2), (PAID, None)])
    assert (folded.status, folded.cancel_unconfirmed) == ("SUCCEEDED", True)
