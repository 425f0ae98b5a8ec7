from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from django.db import IntegrityError, OperationalError, connection, transaction
from django.db.models import Sum

from billing import wallets
from billing.models import EntryKind, Reservation, Wallet, WalletEntry
from billing.money import BadMoney
from billing.wallets import (
    BooksBroken,
    NoSuchReservation,
    NoSuchUser,
    NoSuchWallet,
    OtherReservation,
    TooLittleMoney,
    commit,
    credit,
    debit,
    open_wallet,
    release,
    reserve,
)
from subscriptions.models import User
from tests.faults.threads import at_once
from tests.looking import contents, database_parameters
from tests.refusing import refused

pytestmark = pytest.mark.django_db
PAYMENT = UUID("00000000-0000-4000-8000-000000000001")
APPEND_ONLY = "23001"


@pytest.fixture
def wallet(buyer: User) -> Wallet:
    """100 RUB."""
    wallet = open_wallet(user_id=buyer.pk, currency="RUB")
    _credit(wallet, "100")
    wallet.refresh_from_db()
    return wallet


def _credit(wallet: Wallet, amount: str) -> Decimal:
    return credit(
        wallet_id=wallet.pk, amount=Decimal(amount), kind=EntryKind.TOPUP, payment_id=uuid4()
    )


def _debit(wallet: Wallet, amount: str) -> Decimal:
    return debit(
        wallet_id=wallet.pk,
        amount=Decimal(amount),
        kind=EntryKind.TOPUP_REVOKED,
        payment_id=uuid4(),
    )


def _reserve(wallet: Wallet, amount: str, payment_id: UUID = PAYMENT) -> Reservation:
    return reserve(payment_id=payment_id, wallet_id=wallet.pk, amount=Decimal(amount))


def _assert_holds(wallet: Wallet, balance: str, *, reserved: str = "0") -> None:
    wallet.refresh_from_db()
    assert (wallet.balance, wallet.reserved) == (Decimal(balance), Decimal(reserved))
    assert wallet.entries.aggregate(sum=Sum("amount"))["sum"] == wallet.balance


def test_a_user_has_one_wallet_per_currency(buyer: User) -> None:
    first = open_wallet(user_id=buyer.pk, currency="rub")

    assert (first.user, first.currency) == (buyer, "RUB")
    assert first.balance == first.reserved == 0
    assert open_wallet(user_id=buyer.pk, currency="RUB") == first
    assert open_wallet(user_id=buyer.pk, currency="EUR") != first
    assert Wallet.objects.count() == 2


def test_nobody_has_no_wallet() -> None:
    with pytest.raises(NoSuchUser):
        open_wallet(user_id=uuid4(), currency="RUB")


def test_a_reservation_holds_money_back(wallet: Wallet) -> None:
    reservation = _reserve(wallet, "30.50")

    assert (reservation.payment_id, reservation.wallet) == (PAYMENT, wallet)
    assert (reservation.amount, reservation.status) == (Decimal("30.50"), "RESERVED")
    _assert_holds(wallet, "100", reserved="30.50")


def test_reserving_again_returns_the_first_reservation(wallet: Wallet) -> None:
    first = _reserve(wallet, "60")
    assert _reserve(wallet, "60.0000") == first
    _assert_holds(wallet, "100", reserved="60")


@pytest.mark.parametrize("finish", [commit, release])
def test_a_finished_reservation_is_returned_as_it_is(wallet: Wallet, finish: Any) -> None:
    _reserve(wallet, "60")
    done = finish(PAYMENT).reservation
    assert _reserve(wallet, "60").status == done.status
    _assert_holds(wallet, "40" if finish is commit else "100")


def test_a_payment_has_no_second_reservation_of_another_amount_or_wallet(
    wallet: Wallet, buyer: User
) -> None:
    _reserve(wallet, "60")
    other = open_wallet(user_id=buyer.pk, currency="EUR")
    with pytest.raises(OtherReservation):
        _reserve(wallet, "60.01")
    with pytest.raises(OtherReservation):
        _reserve(other, "60")
    _assert_holds(wallet, "100", reserved="60")


def test_it_refuses_what_the_wallet_cannot_cover_and_leaves_nothing(wallet: Wallet) -> None:
    _reserve(wallet, "60", uuid4())
    before = contents()
    with pytest.raises(TooLittleMoney):
        _reserve(wallet, "40.01")
    # The caller's transaction goes on.
    assert contents() == before
    _reserve(wallet, "40")
    _assert_holds(wallet, "100", reserved="100")


@pytest.mark.parametrize("amount", ["0", "-1", "NaN", "Infinity", "0.001", "1E+16"])
def test_it_reserves_only_what_the_currency_can_express(wallet: Wallet, amount: str) -> None:
    for call in (_reserve, _credit, _debit):
        with pytest.raises(BadMoney):
            call(wallet, amount)
    _assert_holds(wallet, "100")


def test_a_wallet_that_is_not_there_is_a_clear_refusal() -> None:
    for call in (_reserve, _credit, _debit):
        with pytest.raises(NoSuchWallet):
            call(Wallet(pk=uuid4()), "1")
    assert not Reservation.objects.exists()


def test_commit_spends_what_was_reserved_once(wallet: Wallet) -> None:
    _reserve(wallet, "30")

    first, again = commit(PAYMENT), commit(PAYMENT)

    assert (first.moved, again.moved) == (True, False)
    assert first.reservation.status == again.reservation.status == "COMMITTED"
    assert first.reservation.finished_at is not None
    _assert_holds(wallet, "70")
    entry = WalletEntry.objects.get(payment_id=PAYMENT)
    assert entry.kind == "SPENDING"
    assert (entry.amount, entry.balance_after) == (Decimal(-30), Decimal(70))


def test_release_lets_go_of_what_was_reserved_once(wallet: Wallet) -> None:
    _reserve(wallet, "30")
    _reserve(wallet, "20", uuid4())

    first, again = release(PAYMENT), release(PAYMENT)

    assert (first.moved, again.moved) == (True, False)
    assert first.reservation.status == again.reservation.status == "RELEASED"
    _assert_holds(wallet, "100", reserved="20")
    assert not WalletEntry.objects.filter(payment_id=PAYMENT).exists()


def test_what_was_released_cannot_be_committed(wallet: Wallet) -> None:
    _reserve(wallet, "30")
    release(PAYMENT)
    late = commit(PAYMENT)
    assert (late.moved, late.reservation.status) == (False, "RELEASED")
    _assert_holds(wallet, "100")


def test_what_was_committed_cannot_be_released(wallet: Wallet) -> None:
    _reserve(wallet, "30")
    commit(PAYMENT)
    late = release(PAYMENT)
    assert (late.moved, late.reservation.status) == (False, "COMMITTED")
    _assert_holds(wallet, "70")


@pytest.mark.parametrize("finish", [commit, release])
def test_a_reservation_that_is_not_there_is_a_clear_refusal(finish: Any) -> None:
    with pytest.raises(NoSuchReservation):
        finish(PAYMENT)


def test_credit_and_debit_say_the_new_balance_and_leave_entries(wallet: Wallet) -> None:
    assert _credit(wallet, "20.25") == Decimal("120.25")
    assert _debit(wallet, "120.25") == 0
    _assert_holds(wallet, "0")
    entries = WalletEntry.objects.order_by("pk").values_list("kind", "amount", "balance_after")
    assert list(entries) == [
        ("TOPUP", Decimal(100), Decimal(100)),
        ("TOPUP", Decimal("20.25"), Decimal("120.25")),
        ("TOPUP_REVOKED", Decimal("-120.25"), Decimal(0)),
    ]


def test_debit_never_takes_what_is_reserved(wallet: Wallet) -> None:
    _reserve(wallet, "60")
    with pytest.raises(TooLittleMoney):
        _debit(wallet, "40.01")
    _debit(wallet, "40")
    _assert_holds(wallet, "60", reserved="60")
    commit(PAYMENT)
    _assert_holds(wallet, "0")


def test_only_the_currencys_decimals_count(buyer: User) -> None:
    won = open_wallet(user_id=buyer.pk, currency="KRW")
    assert _credit(won, "1000.00") == 1000
    with pytest.raises(BadMoney):
        _reserve(won, "0.5")
    dinar = open_wallet(user_id=buyer.pk, currency="KWD")
    assert _credit(dinar, "0.001") == Decimal("0.001")


def test_a_commit_that_finds_the_money_gone_changes_nothing(
    wallet: Wallet, monkeypatch: pytest.MonkeyPatch
) -> None:
    _reserve(wallet, "30")
    before = contents()
    monkeypatch.setattr(wallets, "_change", lambda *args, **kwargs: None)
    for finish in (commit, release):
        with pytest.raises(BooksBroken):
            finish(PAYMENT)
    assert contents() == before


def test_entries_are_append_only(wallet: Wallet) -> None:
    with refused(APPEND_ONLY):
        WalletEntry.objects.update(amount=1)
    with refused(APPEND_ONLY):
        WalletEntry.objects.all()._raw_delete("default")


def test_the_database_itself_refuses_to_go_below_zero(wallet: Wallet) -> None:
    with refused("wallet_balance_not_negative"):
        Wallet.objects.update(balance=-1, reserved=-1)
    with refused("wallet_reserved_is_covered"):
        Wallet.objects.update(reserved=101)
    with refused("wallet_reserved_is_covered"):
        Wallet.objects.update(reserved=-1)


@pytest.mark.django_db(transaction=True)
def test_two_wallets_opened_at_once_are_one(buyer: User) -> None:
    opened = at_once(*[lambda: open_wallet(user_id=buyer.pk, currency="RUB")] * 4)
    assert {one.pk for one in opened} == {Wallet.objects.get().pk}


@pytest.mark.django_db(transaction=True)
def test_it_is_part_of_the_callers_transaction(wallet: Wallet) -> None:
    with transaction.atomic():
        _reserve(wallet, "30")
        commit(PAYMENT)
        transaction.set_rollback(True)
    _assert_holds(wallet, "100")
    assert not Reservation.objects.exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("change", [credit, debit])
def test_no_balance_changes_without_its_entry(wallet: Wallet, change: Any) -> None:
    with pytest.raises(IntegrityError, match="entry_kind_known"):
        change(wallet_id=wallet.pk, amount=Decimal(1), kind="GIFT", payment_id=None)
    _assert_holds(wallet, "100")


@pytest.mark.django_db(transaction=True)
def test_the_reservation_is_locked_before_the_wallet(wallet: Wallet) -> None:
    """One order everywhere, or two could wait for each other for ever: with both rows taken by
    somebody else, it is the reservation where it waits."""
    _reserve(wallet, "30")
    for finish in (commit, release):
        with psycopg.connect(**database_parameters()) as other:
            other.execute("SELECT 1 FROM billing_wallet, billing_reservation FOR UPDATE")
            with transaction.atomic(), connection.cursor() as cursor:
                cursor.execute("SET LOCAL lock_timeout = 50")
                with pytest.raises(OperationalError, match="billing_reservation"):
                    finish(PAYMENT)
    _assert_holds(wallet, "100", reserved="30")
