from __future__ import annotations

import time
from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from django.db import OperationalError
from django.db.models import F

from billing import wallets
from billing.models import EntryKind, Order, Reservation, Wallet
from billing.wallets import credit, open_wallet
from subscriptions.models import User
from tests.factories import StaffFactory
from tests.faults.threads import at_once
from webhooks.api import idempotency, showing
from webhooks.api.idempotency import Answer, Asked, answer_once
from webhooks.errors import Refused
from webhooks.models import AuditEntry, IdempotentAnswer
from webhooks.tasks import clean_idempotent_answers_task
from webhooks.tests.calling import Caller, at_a_browser, service, told

pytestmark = pytest.mark.django_db


@pytest.fixture
def shop(db: None) -> Caller:
    return service(name="shop")


def _wanted(user: User, /, **fields: Any) -> dict[str, Any]:
    return {
        "merchant_uid": "order-1",
        "buys": "BOOKING",
        "user": str(user.pk),
        "amount": "990",
        "currency": "RUB",
        **fields,
    }


def _replayed(answer: Any) -> bool:
    return bool(answer.headers.get("Idempotency-Replayed") == "true")


def test_the_first_answer_comes_again(shop: Caller, buyer: User) -> None:
    first = shop.post("/api/orders", _wanted(buyer), key="k1")
    Order.objects.update(status="CANCELED")

    again = shop.post("/api/orders/", _wanted(buyer), key="k1")

    assert (first.status_code, again.status_code) == (201, 201)
    assert first.json() == again.json()
    assert (_replayed(first), _replayed(again)) == (False, True)
    assert AuditEntry.objects.filter(action="order_created").count() == 1


def test_without_a_key_nothing_is_remembered(shop: Caller, buyer: User) -> None:
    answers = [shop.post("/api/orders", _wanted(buyer)) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [201, 200]
    assert not IdempotentAnswer.objects.exists()


def test_a_refusal_is_an_answer_too(shop: Caller, buyer: User) -> None:
    wallet = open_wallet(user_id=buyer.pk, currency="RUB")
    url = f"/api/wallets/{wallet.pk}/reservations"
    wanted = {"payment_id": str(uuid4()), "amount": "5"}
    first = shop.post(url, wanted, key="k1")
    credit(wallet_id=wallet.pk, amount=Decimal(5), kind=EntryKind.MANUAL, payment_id=None)

    again = shop.post(url, wanted, key="k1")

    assert told(first) == (409, "INSUFFICIENT_FUNDS")
    assert again.json() == first.json()
    assert _replayed(again)
    assert not Reservation.objects.exists()
    assert shop.post(url, wanted, key="k2").status_code == 201


def test_a_refusal_leaves_nothing_but_its_memory(shop: Caller, buyer: User) -> None:
    """The reservation's row was written before the wallet said no."""
    wallet = open_wallet(user_id=buyer.pk, currency="RUB")
    url = f"/api/wallets/{wallet.pk}/reservations"

    shop.post(url, {"payment_id": str(uuid4()), "amount": "5"}, key="k1")

    assert not Reservation.objects.exists()
    kept = IdempotentAnswer.objects.get()
    assert (kept.client, kept.key, kept.http_status) == ("service:shop", "k1", 409)


def _asked(key: str) -> Asked:
    return Asked(client="service:shop", key=key, request_hash="hash")


def test_what_was_written_before_a_refusal_is_taken_back(buyer: User) -> None:
    def write_and_refuse() -> Answer:
        open_wallet(user_id=buyer.pk, currency="RUB")
        raise Refused(409, "NO", "no")

    for _ in range(2):
        answer = answer_once(_asked("k1"), write_and_refuse)
        assert (answer.http_status, answer.body["error"]) == (409, {"code": "NO", "message": "no"})
    assert not Wallet.objects.exists()


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_what_may_turn_out_otherwise_is_not_remembered(buyer: User, status: int) -> None:
    def refuse() -> Answer:
        raise Refused(status, "NOT_NOW", "not now")

    with pytest.raises(Refused):
        answer_once(_asked("k1"), refuse)

    assert answer_once(_asked("k1"), lambda: Answer(200, {})) == Answer(200, {})


@pytest.mark.parametrize("body", [b"{", b"[]"])
def test_an_unreadable_body_is_remembered_as_well(shop: Caller, body: bytes) -> None:
    first, again = (shop.post("/api/orders", body, key="k1") for _ in range(2))
    assert told(first) == told(again) == (400, "INVALID_REQUEST")
    assert _replayed(again)


@pytest.mark.parametrize(
    ("path", "fields"), [("/api/orders", {"amount": "1"}), ("/api/wallets", {})]
)
def test_another_request_with_the_same_key_is_refused(
    shop: Caller, buyer: User, path: str, fields: dict[str, Any]
) -> None:
    shop.post("/api/orders", _wanted(buyer), key="k1")

    answer = shop.post(path, _wanted(buyer, **fields), key="k1")

    assert told(answer) == (422, "IDEMPOTENCY_KEY_REUSED")
    assert not Wallet.objects.exists()
    assert IdempotentAnswer.objects.get().http_status == 201


def test_the_key_is_the_clients_own(buyer: User) -> None:
    callers = [service(), service(), at_a_browser(StaffFactory.create())]

    answers = [
        caller.post("/api/orders", _wanted(buyer, merchant_uid=f"order-{number}"), key="k1")
        for number, caller in enumerate(callers)
    ]

    assert [answer.status_code for answer in answers] == [201, 201, 201]
    assert Order.objects.count() == 3


@pytest.mark.parametrize("key", ["", "x" * 256, "ключ"])
def test_a_key_that_is_none_is_refused(shop: Caller, buyer: User, key: str) -> None:
    assert told(shop.post("/api/orders", _wanted(buyer), key=key)) == (400, "INVALID_REQUEST")
    assert not Order.objects.exists()


@pytest.mark.parametrize(("error", "status"), [(RuntimeError, 500), (OperationalError, 503)])
def test_a_fault_is_not_remembered_and_takes_everything_along(
    shop: Caller,
    buyer: User,
    monkeypatch: pytest.MonkeyPatch,
    error: type[Exception],
    status: int,
) -> None:
    def fail(*_args: object, **_kwargs: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(showing, "order", fail)
        assert told(shop.post("/api/orders", _wanted(buyer), key="k1"))[0] == status
    assert not Order.objects.exists()
    assert not IdempotentAnswer.objects.exists()
    assert not AuditEntry.objects.filter(action="order_created").exists()

    assert shop.post("/api/orders", _wanted(buyer), key="k1").status_code == 201


def test_who_may_not_call_is_not_told_what_others_were(shop: Caller, buyer: User) -> None:
    shop.post("/api/orders", _wanted(buyer), key="k1")
    shop.headers["Authorization"] = "Bearer tgs_wrong"

    assert told(shop.post("/api/orders", _wanted(buyer), key="k1")) == (401, "INVALID_TOKEN")


def test_answers_are_forgotten_after_seven_days(shop: Caller, buyer: User) -> None:
    shop.post("/api/orders", _wanted(buyer), key="old")
    IdempotentAnswer.objects.update(created_at=F("created_at") - timedelta(days=7, seconds=5))
    shop.post("/api/orders", _wanted(buyer), key="new")

    clean_idempotent_answers_task()

    assert IdempotentAnswer.objects.get().key == "new"


def _slow_reserve(monkeypatch: pytest.MonkeyPatch, *, seconds: float) -> list[int]:
    calls: list[int] = []
    reserve = wallets.reserve

    def slow(**kwargs: Any) -> Reservation:
        calls.append(1)
        time.sleep(seconds)
        return reserve(**kwargs)

    monkeypatch.setattr(wallets, "reserve", slow)
    return calls


@pytest.mark.django_db(transaction=True)
def test_looking_instead_of_claiming_lets_both_act(
    buyer: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: both look before either has written."""
    monkeypatch.setattr(
        idempotency, "_claim", lambda asked: not IdempotentAnswer.objects.filter(key=asked.key)
    )
    wallet = open_wallet(user_id=buyer.pk, currency="RUB")
    shop = service(name="shop")
    calls = _slow_reserve(monkeypatch, seconds=0.5)
    wanted = {"payment_id": str(uuid4()), "amount": "5"}
    url = f"/api/wallets/{wallet.pk}/reservations"

    at_once(*(lambda: shop.post(url, wanted, key="k1") for _ in range(2)))

    assert len(calls) == 2


@pytest.mark.django_db(transaction=True)
def test_of_many_at_once_one_acts_and_all_get_its_answer(
    buyer: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    wallet = open_wallet(user_id=buyer.pk, currency="RUB")
    credit(wallet_id=wallet.pk, amount=Decimal(5), kind=EntryKind.MANUAL, payment_id=None)
    shop = service(name="shop")
    calls = _slow_reserve(monkeypatch, seconds=0.3)
    wanted = {"payment_id": str(uuid4()), "amount": "5"}
    url = f"/api/wallets/{wallet.pk}/reservations"

    answers = at_once(*(lambda: shop.post(url, wanted, key="k1") for _ in range(6)))

    assert [answer.status_code for answer in answers] == [201] * 6
    assert len({answer.content for answer in answers if _replayed(answer)}) == 1
    assert sorted(_replayed(answer) for answer in answers) == [False] + [True] * 5
    assert len(calls) == 1
    assert AuditEntry.objects.filter(action="wallet_reserved").count() == 1


@pytest.mark.django_db(transaction=True)
def test_who_waits_too_long_is_told_to_try_again(
    buyer: User, monkeypatch: pytest.MonkeyPatch, settings: Any
) -> None:
    settings.LOCK_TIMEOUT_MS = 100
    wallet = open_wallet(user_id=buyer.pk, currency="RUB")
    credit(wallet_id=wallet.pk, amount=Decimal(5), kind=EntryKind.MANUAL, payment_id=None)
    shop = service(name="shop")
    calls = _slow_reserve(monkeypatch, seconds=1)
    wanted = {"payment_id": str(uuid4()), "amount": "5"}
    url = f"/api/wallets/{wallet.pk}/reservations"

    answers = at_once(*(lambda: shop.post(url, wanted, key="k1") for _ in range(2)))

    assert sorted(answer.status_code for answer in answers) == [201, 409]
    (refused,) = (answer for answer in answers if answer.status_code == 409)
    assert told(refused) == (409, "IDEMPOTENCY_KEY_IN_USE")
    assert len(calls) == 1
    assert shop.post(url, wanted, key="k1").status_code == 201
