from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from functools import partial
from threading import Event
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import transaction

from billing import initiating
from billing.facts import FactKind
from billing.fold import fold
from billing.initiating import (
    BadInitiation,
    Initiation,
    NameTaken,
    NoSuchPayment,
    NoSuchUser,
    OtherInitiation,
    OtherTxnId,
    WrongWallet,
    initiate,
    learn_provider_txn_id,
    record_refused,
)
from billing.models import (
    EntryKind,
    Fact,
    OutboxMessage,
    Payment,
    PaymentAlias,
    Reservation,
    Wallet,
)
from billing.wallets import (
    NoSuchWallet,
    OtherReservation,
    TooLittleMoney,
    credit,
    open_wallet,
    release,
    reserve,
)
from subscriptions.models import User
from tests.factories import UserFactory
from tests.faults.threads import Meeting, at_once
from tests.looking import contents

pytestmark = pytest.mark.django_db
PAYMENT = UUID("0f5f6f1e-7c1d-4f8e-9d2b-0a5b7e1c2d3f")


@pytest.fixture
def asked(buyer: User) -> Initiation:
    return Initiation(
        payment_id=PAYMENT,
        user_id=buyer.pk,
        amount=Decimal("40.50"),
        currency="RUB",
        provider="tilda",
        provider_txn_id="txn-1",
        merchant_uid="order-1",
    )


@pytest.fixture
def wallet(buyer: User) -> Wallet:
    """100 RUB."""
    wallet = open_wallet(user_id=buyer.pk, currency="RUB")
    credit(wallet_id=wallet.pk, amount=Decimal(100), kind=EntryKind.MANUAL, payment_id=None)
    return wallet


def _assert_is_its_fold(payment: Payment) -> None:
    """Whatever arrives next folds all facts anew; that must not change what we wrote."""
    folded = fold(payment.facts.all())
    for name in (f.name for f in Payment._meta.concrete_fields if hasattr(folded, f.name)):
        assert getattr(payment, name) == getattr(folded, name), name


def _told() -> list[tuple[str, int, str]]:
    messages = OutboxMessage.objects.order_by("key", "seq")
    return [(one.type, one.seq, one.data["payment"]["status"]) for one in messages]


def test_it_starts_a_payment(asked: Initiation, buyer: User) -> None:
    payment, created = initiate(asked)

    assert created
    payment.refresh_from_db()
    assert (payment.pk, payment.external_payment_id) == (PAYMENT, str(PAYMENT))
    assert (payment.provider, payment.provider_txn_id) == ("tilda", "txn-1")
    assert (payment.user, payment.merchant_uid) == (buyer, "order-1")
    assert (payment.amount, payment.currency) == (Decimal("40.50"), "RUB")
    assert payment.status == "PROCESSING"
    assert payment.initiated_at == payment.created_at
    aliases = PaymentAlias.objects.values_list("system", "external_id", "payment_id")
    assert set(aliases) == {("tilda", str(PAYMENT), PAYMENT), ("tilda", "txn-1", PAYMENT)}
    assert not Reservation.objects.exists()


def test_its_state_is_the_fold_of_what_we_stated(asked: Initiation) -> None:
    payment, _ = initiate(asked)

    _assert_is_its_fold(payment)
    fact = Fact.objects.get()
    assert (fact.kind, fact.event_id, fact.event_key) == (
        "PENDING",
        PAYMENT,
        f"initiated:{PAYMENT}",
    )
    assert (fact.reading, fact.merchant_uid) == ("initiated", "order-1")
    assert (fact.occurred_at, fact.received_at) == (None, payment.initiated_at)


def test_it_tells_that_the_payment_was_started(asked: Initiation, wallet: Wallet) -> None:
    initiate(replace(asked, wallet_id=wallet.pk))

    message = OutboxMessage.objects.get()
    assert (message.type, message.key, message.seq) == ("PaymentInitiated", PAYMENT, 1)
    assert message.idempotency_key == f"PaymentInitiated:{PAYMENT}:initiated"
    assert message.data["wallet_id"] == str(wallet.pk)
    assert message.data["payment"]["status"] == "PROCESSING"
    assert message.data["payment"]["amount"] == "40.5"


def test_a_duplicate_is_a_no_op(asked: Initiation, wallet: Wallet) -> None:
    asked = replace(asked, wallet_id=wallet.pk)
    first, _ = initiate(asked)
    before = contents()

    again, created = initiate(asked)

    assert (again, created) == (first, False)
    assert contents() == before


@pytest.mark.parametrize(
    "change",
    [
        {"amount": Decimal("40.51")},
        {"currency": "EUR"},
        {"provider": "stripe"},
        {"merchant_uid": "order-2"},
        {"user_id": uuid4()},
    ],
)
def test_one_id_cannot_stand_for_two_payments(asked: Initiation, change: dict[str, Any]) -> None:
    initiate(asked)
    before = contents()
    for start in (initiate, lambda other: record_refused(other, "too little money")):
        with pytest.raises(OtherInitiation):
            start(replace(asked, **change))
    assert contents() == before


def test_a_duplicate_is_compared_with_what_was_asked_for_not_with_what_became_of_it(
    asked: Initiation,
) -> None:
    payment, _ = initiate(asked)
    Payment.objects.update(amount=Decimal(99), status="SUCCEEDED")
    assert initiate(asked) == (payment, False)
    with pytest.raises(OtherInitiation):
        initiate(replace(asked, amount=Decimal(99)))


def test_a_payment_that_a_provider_brought_was_not_started_here(asked: Initiation) -> None:
    Payment.objects.create(
        pk=PAYMENT,
        provider="tilda",
        external_payment_id="theirs",
        user_id=asked.user_id,
        amount=asked.amount,
        currency="RUB",
    )
    with pytest.raises(OtherInitiation):
        initiate(asked)


def test_a_name_of_another_payment_is_refused_and_nothing_remains(asked: Initiation) -> None:
    initiate(asked)
    before = contents()
    with pytest.raises(NameTaken):
        initiate(replace(asked, payment_id=uuid4()))
    assert contents() == before
    # The same id at another provider is another name.
    initiate(replace(asked, payment_id=uuid4(), provider="stripe"))


def test_its_own_id_may_be_another_payments_name(asked: Initiation) -> None:
    other = Payment.objects.create(provider="tilda", external_payment_id=str(PAYMENT))
    with pytest.raises(NameTaken):
        initiate(asked)
    assert Payment.objects.get() == other


def test_nobody_pays_for_an_unknown_user(asked: Initiation) -> None:
    for start in (initiate, lambda other: record_refused(other, "too little money")):
        with pytest.raises(NoSuchUser):
            start(replace(asked, user_id=uuid4()))
    assert not Payment.objects.exists()
    assert not OutboxMessage.objects.exists()


def test_it_reserves_from_the_wallet(asked: Initiation, wallet: Wallet) -> None:
    initiate(replace(asked, wallet_id=wallet.pk))
    reservation = Reservation.objects.get()
    assert (reservation.payment_id, reservation.wallet) == (PAYMENT, wallet)
    assert (reservation.amount, reservation.status) == (Decimal("40.50"), "RESERVED")


def test_nothing_remains_of_a_payment_that_the_wallet_cannot_cover(
    asked: Initiation, wallet: Wallet
) -> None:
    before = contents()
    with pytest.raises(TooLittleMoney):
        initiate(replace(asked, wallet_id=wallet.pk, amount=Decimal("100.01")))
    assert contents() == before


def test_the_wallet_is_the_users_and_of_the_payments_currency(
    asked: Initiation, wallet: Wallet
) -> None:
    before = contents()
    stranger = UserFactory.create()
    with pytest.raises(WrongWallet):
        initiate(replace(asked, wallet_id=wallet.pk, user_id=stranger.pk))
    with pytest.raises(WrongWallet):
        initiate(replace(asked, wallet_id=wallet.pk, currency="EUR"))
    with pytest.raises(NoSuchWallet):
        initiate(replace(asked, wallet_id=uuid4()))
    stranger.delete()
    assert contents() == before


def test_a_duplicate_that_names_another_wallet_is_another_payment(
    asked: Initiation, wallet: Wallet
) -> None:
    """Whoever names a wallet would believe that its money is held."""
    initiate(asked)
    with pytest.raises(OtherInitiation):
        initiate(replace(asked, wallet_id=wallet.pk))
    held = replace(asked, payment_id=uuid4(), provider_txn_id=None, wallet_id=wallet.pk)
    initiate(held)
    with pytest.raises(OtherInitiation):
        initiate(replace(held, wallet_id=uuid4()))


def test_money_that_was_reserved_before_is_not_reserved_again(
    asked: Initiation, wallet: Wallet
) -> None:
    reserve(payment_id=PAYMENT, wallet_id=wallet.pk, amount=asked.amount)
    initiate(replace(asked, wallet_id=wallet.pk))
    wallet.refresh_from_db()
    assert wallet.reserved == asked.amount


def test_a_reservation_that_was_released_before_holds_nothing(
    asked: Initiation, wallet: Wallet
) -> None:
    reserve(payment_id=PAYMENT, wallet_id=wallet.pk, amount=asked.amount)
    release(PAYMENT)
    with pytest.raises(OtherReservation):
        initiate(replace(asked, wallet_id=wallet.pk))
    assert not Payment.objects.exists()


def test_a_refused_payment_exists_and_failed(asked: Initiation, wallet: Wallet) -> None:
    asked = replace(asked, wallet_id=wallet.pk, amount=Decimal(101))

    payment = record_refused(asked, "the wallet has too little money")

    payment.refresh_from_db()
    assert payment.status == "FAILED"
    assert payment.failed_at == payment.initiated_at
    _assert_is_its_fold(payment)
    facts = list(Fact.objects.order_by("pk").values_list("kind", "event_key"))
    assert facts == [
        (FactKind.PENDING, f"initiated:{PAYMENT}"),
        (FactKind.FAILED, f"refused:{PAYMENT}"),
    ]
    assert _told() == [("PaymentInitiated", 1, "PROCESSING"), ("PaymentFailed", 2, "FAILED")]
    why = OutboxMessage.objects.get(type="PaymentFailed").data["why"]
    assert why == "the wallet has too little money"
    assert not Reservation.objects.exists()


def test_refusing_again_is_a_no_op_and_so_is_starting_it_again(
    asked: Initiation, wallet: Wallet
) -> None:
    asked = replace(asked, wallet_id=wallet.pk, amount=Decimal(101))
    payment = record_refused(asked, "too little money")
    before = contents()
    assert record_refused(asked, "too little money") == payment
    assert initiate(asked) == (payment, False)
    assert contents() == before


def test_a_payment_that_was_started_meanwhile_is_not_refused(
    asked: Initiation, wallet: Wallet
) -> None:
    initiate(replace(asked, wallet_id=wallet.pk))
    payment = record_refused(replace(asked, wallet_id=wallet.pk), "too little money")
    assert payment.status == "PROCESSING"
    assert Reservation.objects.get().status == "RESERVED"


def test_it_learns_the_providers_id_once(asked: Initiation) -> None:
    initiate(replace(asked, provider_txn_id=None))

    assert learn_provider_txn_id(PAYMENT, "txn-9").provider_txn_id == "txn-9"
    before = contents()
    assert learn_provider_txn_id(PAYMENT, "txn-9").pk == PAYMENT
    with pytest.raises(OtherTxnId):
        learn_provider_txn_id(PAYMENT, "txn-10")

    assert contents() == before
    assert PaymentAlias.objects.get(external_id="txn-9").payment_id == PAYMENT
    assert _told() == [
        ("PaymentInitiated", 1, "PROCESSING"),
        ("PaymentNamed", 2, "PROCESSING"),
    ]


def test_a_repeat_may_bring_the_providers_id(asked: Initiation) -> None:
    initiate(replace(asked, provider_txn_id=None))
    payment, created = initiate(asked)
    assert (payment.provider_txn_id, created) == ("txn-1", False)
    assert PaymentAlias.objects.filter(external_id="txn-1", payment=payment).exists()
    with pytest.raises(OtherTxnId):
        initiate(replace(asked, provider_txn_id="txn-2"))


def test_it_does_not_learn_an_id_of_another_payment(asked: Initiation) -> None:
    initiate(asked)
    other = uuid4()
    initiate(replace(asked, payment_id=other, provider_txn_id=None))
    with pytest.raises(NameTaken):
        learn_provider_txn_id(other, "txn-1")
    assert Payment.objects.get(pk=other).provider_txn_id is None


def test_it_learns_nothing_about_an_unknown_payment_and_nothing_blank(asked: Initiation) -> None:
    with pytest.raises(NoSuchPayment):
        learn_provider_txn_id(uuid4(), "txn-1")
    initiate(replace(asked, provider_txn_id=None))
    for bad in ("", " ", "x" * 256, "a\0b"):
        with pytest.raises(BadInitiation, match="provider_txn_id"):
            learn_provider_txn_id(PAYMENT, bad)


@pytest.mark.django_db(transaction=True)
def test_two_initiations_at_once_are_one_payment(
    asked: Initiation, wallet: Wallet, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = replace(asked, wallet_id=wallet.pk)
    monkeypatch.setattr(initiating, "_create", Meeting(2).after(initiating._create))

    results = at_once(lambda: initiate(asked), lambda: initiate(asked))

    assert sorted(created for _, created in results) == [False, True]
    assert Payment.objects.get().pk == PAYMENT
    assert Reservation.objects.count() == Fact.objects.count() == OutboxMessage.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_the_second_starts_the_payment_when_the_first_takes_it_back(asked: Initiation) -> None:
    meeting, is_started = Meeting(2), Event()

    def start_and_take_back() -> None:
        with transaction.atomic():
            initiate(asked)
            is_started.set()
            meeting.wait()  # for the second, which waits for our primary key
            transaction.set_rollback(True)

    def start() -> tuple[Payment, bool]:
        is_started.wait(10)
        return initiate(asked)

    _, (payment, created) = at_once(start_and_take_back, start)

    assert created
    assert Payment.objects.get() == payment


@pytest.mark.django_db(transaction=True)
def test_two_payments_that_want_one_name_at_once(asked: Initiation) -> None:
    others = [replace(asked, payment_id=uuid4()) for _ in range(4)]
    results = at_once(
        *(lambda other=other: initiate(other) for other in others), expected=NameTaken
    )
    assert sum(isinstance(result, NameTaken) for result in results) == 3
    assert Payment.objects.count() == 1
    assert PaymentAlias.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_a_refusal_and_a_start_at_once_agree(asked: Initiation, wallet: Wallet) -> None:
    asked = replace(asked, wallet_id=wallet.pk)
    for _ in range(5):
        one = replace(asked, payment_id=uuid4(), provider_txn_id=None, amount=Decimal(1))
        at_once(partial(initiate, one), partial(record_refused, one, "too little money"))
        payment = Payment.objects.get(pk=one.payment_id)
        is_held = Reservation.objects.filter(payment_id=payment.pk).exists()
        assert payment.status == ("PROCESSING" if is_held else "FAILED")
        _assert_is_its_fold(payment)
