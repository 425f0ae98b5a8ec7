"""A message asks for a payment: it is started once, or a person sees why not."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from django.db import OperationalError

from billing.models import Payment, PoisonMessage, Reservation
from billing.outbox.incoming import Incoming, take
from subscriptions.models import User
from tests.asking import asked, body, wallet_with
from tests.looking import database_away

pytestmark = pytest.mark.django_db


def taken(said: object, position: str = "stream/1") -> str:
    raw = said if isinstance(said, bytes) else body(said)
    return str(take(Incoming("redis", position, raw)))


def test_it_starts_the_payment_and_reserves(buyer: User):
    wallet = wallet_with(buyer, 500)
    said = asked(buyer, wallet=str(wallet.pk))
    assert taken(said) == "initiated"
    payment = Payment.objects.get()
    assert (str(payment.pk), payment.status, payment.user) == (
        said["payment_id"],
        "PROCESSING",
        buyer,
    )
    assert Reservation.objects.get().payment_id == payment.pk


def test_a_repeat_is_a_duplicate(buyer: User):
    said = asked(buyer)
    assert [taken(said, f"stream/{n}") for n in range(3)] == ["initiated", "duplicate", "duplicate"]
    assert Payment.objects.count() == 1
    assert not PoisonMessage.objects.exists()


def test_an_envelope_is_opened_and_one_of_another_type_is_not_for_us(buyer: User):
    said = asked(buyer)
    assert taken({"type": "PaymentSucceeded", "data": said}) == "ignored"
    assert taken({"type": "PaymentInitiated", "data": said}) == "initiated"
    assert Payment.objects.get().pk == UUID(said["payment_id"])


def test_too_little_money_makes_a_failed_payment(buyer: User):
    wallet = wallet_with(buyer, 1)
    assert taken(asked(buyer, wallet=str(wallet.pk))) == "refused"
    assert Payment.objects.get().status == "FAILED"
    assert not PoisonMessage.objects.exists()


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"", "not JSON"),
        (b"\xff\xfe{\x00}\x00", "not JSON"),
        (b"[1]", "not a JSON object"),
        (b'{"type": "PaymentInitiated", "data": 1}', "not a JSON object"),
        (b'{"amount": 1, "amount": 2}', "same key twice"),
        (b'{"amount": NaN}', "out of range"),
        (b'{"amount": ' + b"9" * 5000 + b"}", "out of range"),
        (b"[" * 100_000, "not JSON"),
        (b"x" * (1024 * 1024 + 1), "too large"),
        (b"{}", "BadInitiation"),
    ],
)
def test_what_cannot_be_read_is_kept_for_a_person(raw: bytes, error: str):
    assert taken(raw) == "poison"
    kept = PoisonMessage.objects.get()
    assert error in kept.error
    assert bytes(kept.body) == raw[: 1024 * 1024]
    assert (kept.source, kept.position, kept.review) == ("redis", "stream/1", "OPEN")
    assert taken(raw) == "poison"
    assert PoisonMessage.objects.count() == 1, "the same place is kept once"


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"user": str(uuid4())}, "NoSuchUser"),
        ({"wallet": str(uuid4())}, "NoSuchWallet"),
        ({"amount": "-1"}, "BadInitiation"),
        ({"amount": 10.001}, "BadInitiation"),
        ({"payment_id": "x"}, "BadInitiation"),
        ({"provider": "a\0b"}, ""),
    ],
)
def test_what_is_refused_for_good_is_kept_for_a_person(
    buyer: User, fields: dict[str, object], error: str
):
    assert taken(asked(buyer, **fields)) == "poison"
    assert PoisonMessage.objects.get().error.startswith(error)
    assert not Payment.objects.exists()
    assert taken(asked(buyer), "stream/2") == "initiated"


def test_another_payment_of_the_same_id_is_kept_for_a_person(buyer: User):
    said = asked(buyer)
    taken(said)
    assert taken({**said, "amount": "999"}, "stream/2") == "poison"
    assert PoisonMessage.objects.get().error.startswith("OtherInitiation")


@pytest.mark.django_db(transaction=True)
def test_a_database_that_is_away_makes_no_poison(buyer: User):
    said = asked(buyer)
    with database_away(), pytest.raises(OperationalError):
        taken(said)
    assert not PoisonMessage.objects.exists()
    assert taken(said) == "initiated"
