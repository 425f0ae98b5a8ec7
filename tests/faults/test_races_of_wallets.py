"""What the guarded updates and unique keys of a wallet prevent.

Each race is shown twice with the same forced interleaving: with a guard taken away the books are
wrong; with the code as it is they are not. The last test leaves the interleaving to chance.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from functools import partial
from itertools import chain
from queue import Empty, SimpleQueue
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import IntegrityError
from django.db.models import Sum
from django.db.models.functions import Now

from billing import wallets
from billing.models import EntryKind, Reservation, Wallet, WalletEntry
from billing.wallets import (
    Finished,
    NoSuchReservation,
    TooLittleMoney,
    commit,
    credit,
    debit,
    open_wallet,
    release,
    reserve,
)
from subscriptions.models import User
from tests.factories import UserFactory
from tests.faults.threads import Meeting, at_once

pytestmark = pytest.mark.django_db(transaction=True)

THREADS = 8


def _open(user: User) -> Wallet:
    """100 RUB."""
    wallet = open_wallet(user_id=user.pk, currency="RUB")
    credit(wallet_id=wallet.pk, amount=Decimal(100), kind=EntryKind.MANUAL, payment_id=None)
    return wallet


@pytest.fixture
def wallet(buyer: User) -> Wallet:
    return _open(buyer)


def _reserve(wallet: Wallet, amount: int, payment_id: UUID | None = None) -> Reservation:
    return reserve(payment_id=payment_id or uuid4(), wallet_id=wallet.pk, amount=Decimal(amount))


def _reserving(wallet: Wallet, amount: int) -> Callable[[], Reservation]:
    return partial(_reserve, wallet, amount, uuid4())


def assert_books_balance() -> None:
    """Each balance is the sum of its entries, each step of it; what is reserved is what the
    reservations say; each payment was spent at most once and as it was reserved."""
    for wallet in Wallet.objects.all():
        balance = Decimal(0)
        for entry in wallet.entries.order_by("pk"):
            balance += entry.amount
            assert entry.balance_after == balance >= 0
        assert wallet.balance == balance
        held = wallet.reservations.filter(status="RESERVED").aggregate(sum=Sum("amount"))["sum"]
        assert wallet.reserved == (held or 0)
        assert 0 <= wallet.reserved <= wallet.balance
    spent = WalletEntry.objects.filter(kind="SPENDING").values_list("payment_id", "amount")
    committed = Reservation.objects.filter(status="COMMITTED").values_list("payment_id", "amount")
    assert sorted(spent) == sorted((payment, -amount) for payment, amount in committed)


def _change_without_guard(
    read: Callable[[UUID], Wallet],
) -> Callable[..., Decimal | None]:
    """Looks first and writes later what it then believes to be right."""

    def change(
        wallet_id: UUID, *, balance: Decimal = Decimal(0), reserved: Decimal = Decimal(0)
    ) -> Decimal | None:
        seen = read(wallet_id)
        new_balance, new_reserved = seen.balance + balance, seen.reserved + reserved
        if new_balance < new_reserved:
            return None
        Wallet.objects.filter(pk=wallet_id).update(balance=new_balance, reserved=new_reserved)
        return new_balance

    return change


def _without_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Meeting(2).after(lambda wallet_id: Wallet.objects.get(pk=wallet_id))
    monkeypatch.setattr(wallets, "_change", _change_without_guard(read))


@pytest.mark.breaks_invariants("reserved_is_the_sum_of_reservations")
def test_the_same_money_is_held_twice_without_the_guard_of_the_wallet(
    wallet: Wallet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: both see 100 before either holds 60 of it."""
    _without_guard(monkeypatch)

    at_once(_reserving(wallet, 60), _reserving(wallet, 60))

    assert Reservation.objects.filter(status="RESERVED").count() == 2
    with pytest.raises(AssertionError):
        assert_books_balance()


def test_the_same_money_is_held_once_when_two_payments_want_it(
    wallet: Wallet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wallets, "_change", Meeting(2).after(wallets._change))

    results = at_once(_reserving(wallet, 60), _reserving(wallet, 60), expected=TooLittleMoney)

    assert sum(isinstance(result, TooLittleMoney) for result in results) == 1
    assert Reservation.objects.get().amount == 60
    assert_books_balance()


def _credit(wallet: Wallet) -> Decimal:
    return credit(wallet_id=wallet.pk, amount=Decimal(10), kind=EntryKind.TOPUP, payment_id=uuid4())


def _debit(wallet: Wallet) -> Decimal:
    return debit(
        wallet_id=wallet.pk, amount=Decimal(90), kind=EntryKind.TOPUP_REVOKED, payment_id=uuid4()
    )


@pytest.mark.breaks_invariants(
    "balance_is_the_sum_of_entries", "entries_say_the_balance_after_them"
)
def test_a_credit_is_lost_without_the_guard_of_the_wallet(
    wallet: Wallet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    _without_guard(monkeypatch)

    assert at_once(partial(_credit, wallet), partial(_credit, wallet)) == [110, 110]

    with pytest.raises(AssertionError):
        assert_books_balance()


def test_no_credit_is_lost_when_two_come_at_once(
    wallet: Wallet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wallets, "_change", Meeting(2).after(wallets._change))

    assert sorted(at_once(partial(_credit, wallet), partial(_credit, wallet))) == [110, 120]

    assert_books_balance()


def test_money_is_not_debited_while_it_is_being_reserved(
    wallet: Wallet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wallets, "_change", Meeting(2).after(wallets._change))

    results = at_once(_reserving(wallet, 60), partial(_debit, wallet), expected=TooLittleMoney)

    assert sum(isinstance(result, TooLittleMoney) for result in results) == 1
    assert_books_balance()


def test_one_payment_reserves_once_when_it_asks_twice_at_once(
    wallet: Wallet, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert = Meeting(2).after(wallets._insert_reservation)
    monkeypatch.setattr(wallets, "_insert_reservation", insert)
    ask = _reserving(wallet, 60)

    first, second = at_once(ask, ask)

    assert first == second == Reservation.objects.get()
    wallet.refresh_from_db()
    assert wallet.reserved == 60
    assert_books_balance()


def test_the_second_is_refused_as_the_first_was_when_both_ask_for_too_much(
    wallet: Wallet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one's row is gone with its savepoint, so the second does not take it for money."""
    insert = Meeting(2).after(wallets._insert_reservation)
    monkeypatch.setattr(wallets, "_insert_reservation", insert)
    ask = _reserving(wallet, 101)

    results = at_once(ask, ask, expected=TooLittleMoney)

    assert [type(result) for result in results] == [TooLittleMoney, TooLittleMoney]
    assert not Reservation.objects.exists()
    assert_books_balance()


def test_the_unique_payment_alone_keeps_a_second_reservation_out(
    wallet: Wallet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: looking first is no guard; only the database's key is left."""
    look = Meeting(2).after(lambda payment: Reservation.objects.filter(payment_id=payment).exists())

    def look_then_insert(payment_id: UUID, wallet_id: UUID, amount: Decimal) -> bool:
        if look(payment_id):
            return False
        Reservation.objects.create(payment_id=payment_id, wallet_id=wallet_id, amount=amount)
        return True

    monkeypatch.setattr(wallets, "_insert_reservation", look_then_insert)
    ask = _reserving(wallet, 60)

    results = at_once(ask, ask, expected=IntegrityError)

    assert sum(isinstance(result, IntegrityError) for result in results) == 1
    assert_books_balance()


def _look_then_finish(meeting: Meeting) -> Callable[..., Finished]:
    def finish(payment_id: UUID, to: str) -> Finished:
        reservation = Reservation.objects.get(payment_id=payment_id)
        meeting.wait()
        if reservation.status != "RESERVED":
            return Finished(reservation, moved=False)
        Reservation.objects.filter(pk=reservation.pk).update(status=to, finished_at=Now())
        return Finished(reservation, moved=True)

    return finish


@pytest.mark.parametrize("other", [commit, release])
@pytest.mark.breaks_invariants("reserved_is_the_sum_of_reservations", "reservation_is_spent_once")
def test_a_reservation_is_finished_twice_when_its_status_is_only_looked_at(
    wallet: Wallet, monkeypatch: pytest.MonkeyPatch, other: Callable[[UUID], Finished]
) -> None:
    """Negative control. Another payment's money is there to be taken, so no constraint objects."""
    payment, _ = _reserve(wallet, 30).payment_id, _reserve(wallet, 30)
    monkeypatch.setattr(wallets, "_finish", _look_then_finish(Meeting(2)))

    results = at_once(partial(commit, payment), partial(other, payment))

    assert [result.moved for result in results] == [True, True]
    with pytest.raises(AssertionError):
        assert_books_balance()


@pytest.mark.parametrize("other", [commit, release])
def test_a_reservation_is_finished_once_when_two_want_to_finish_it(
    wallet: Wallet, monkeypatch: pytest.MonkeyPatch, other: Callable[[UUID], Finished]
) -> None:
    payment, _ = _reserve(wallet, 30).payment_id, _reserve(wallet, 30)
    monkeypatch.setattr(wallets, "_finish", Meeting(2).after(wallets._finish))

    results = at_once(partial(commit, payment), partial(other, payment))

    assert sorted(result.moved for result in results) == [False, True]
    assert len({result.reservation.status for result in results}) == 1
    assert_books_balance()


# What becomes of one payment, again and again: four calls each.
_LIVES = (
    ("reserve", "reserve", "commit", "release"),
    ("reserve", "reserve", "commit", "commit"),
    ("reserve", "release", "release", "reserve"),
    ("reserve", "release", "commit", "reserve"),
    ("reserve", "reserve", "reserve", "reserve"),
)


def _two_hundred_calls(
    owned: list[Wallet], dice: random.Random
) -> list[tuple[str, Callable[[], Any]]]:
    """Roughly in the order of life, each payment's overlapping with many others'."""
    calls = []
    for number in range(50):
        payment, amount = uuid4(), dice.randint(1, 40)
        actions: dict[str, Callable[[], Any]] = {
            "reserve": partial(_reserve, owned[number % len(owned)], amount, payment),
            "commit": partial(commit, payment),
            "release": partial(release, payment),
        }
        begins = dice.random()
        for place, name in enumerate(_LIVES[number % len(_LIVES)]):
            calls.append((begins + 0.01 * place * dice.random(), name, actions[name]))
    return [(name, call) for _, name, call in sorted(calls, key=lambda call: call[0])]


def _work_off(calls: SimpleQueue[tuple[str, Callable[[], Any]]]) -> list[str]:
    """What came of each call, until none is left."""
    outcomes: list[str] = []
    while True:
        try:
            name, call = calls.get_nowait()
        except Empty:
            return outcomes
        try:
            result = call()
            outcomes.append(f"{name} {getattr(result, 'moved', True)}")
        except (TooLittleMoney, NoSuchReservation) as refusal:
            outcomes.append(f"{name} {type(refusal).__name__}")


def test_the_books_balance_after_two_hundred_calls_at_once() -> None:
    owned = [_open(UserFactory.create()) for _ in range(3)]
    calls: SimpleQueue[tuple[str, Callable[[], Any]]] = SimpleQueue()
    for call in _two_hundred_calls(owned, random.Random(20)):
        calls.put(call)

    outcomes = Counter(chain(*at_once(*[partial(_work_off, calls)] * THREADS)))

    assert outcomes.total() == 200
    assert_books_balance()
    moved = {"commit True": "COMMITTED", "release True": "RELEASED"}
    for outcome, status in moved.items():
        assert outcomes[outcome] == Reservation.objects.filter(status=status).count() > 0
    # The test is worth something only if money ran out and calls were repeated.
    assert outcomes["reserve TooLittleMoney"] + outcomes["commit False"] + outcomes["release False"]
