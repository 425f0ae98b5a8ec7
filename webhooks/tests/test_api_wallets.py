from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest

from billing.models import EntryKind, Payment, Reservation, Wallet, WalletEntry
from billing.wallets import credit, open_wallet
from subscriptions.models import User
from tests.factories import UserFactory
from tests.looking import contents
from webhooks.models import AuditEntry
from webhooks.tests.calling import Caller, service, told

pytestmark = pytest.mark.django_db


@pytest.fixture
def shop(db: None) -> Caller:
    return service(name="shop")


@pytest.fixture
def wallet(buyer: User) -> Wallet:
    """With 100 roubles."""
    wallet = open_wallet(user_id=buyer.pk, currency="RUB")
    credit(wallet_id=wallet.pk, amount=Decimal(100), kind=EntryKind.MANUAL, payment_id=None)
    return wallet


def _money(shop: Caller, wallet: Wallet) -> tuple[str, str, str]:
    told = shop.get(f"/api/wallets/{wallet.pk}").json()
    return told["balance"], told["reserved"], told["available"]


def _reserve(shop: Caller, wallet: Wallet, payment_id: UUID, amount: Any = "60.00") -> Any:
    url = f"/api/wallets/{wallet.pk}/reservations"
    return shop.post(url, {"payment_id": str(payment_id), "amount": amount})


def _finish(shop: Caller, wallet: Wallet, payment_id: UUID, how: str) -> Any:
    return shop.post(f"/api/wallets/{wallet.pk}/reservations/{payment_id}/{how}")


def _actions() -> list[str]:
    entries = AuditEntry.objects.filter(actor="service:shop").order_by("at")
    return [entry.action for entry in entries]


def test_a_wallet_is_opened_once(shop: Caller, buyer: User) -> None:
    wanted = {"user": str(buyer.pk), "currency": "rub", "balance": "1000000"}

    first, again = shop.post("/api/wallets", wanted), shop.post("/api/wallets", wanted)

    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    wallet = Wallet.objects.get()
    assert first.json() == {
        "wallet_id": str(wallet.pk),
        "user": str(buyer.pk),
        "currency": "RUB",
        "balance": "0",
        "reserved": "0",
        "available": "0",
        "created_at": wallet.created_at.isoformat(),
        "entries": [],
    }
    assert _actions() == ["wallet_opened"]


@pytest.mark.parametrize(
    ("fields", "status", "code"),
    [
        ({"user": str(uuid4())}, 404, "NO_SUCH_USER"),
        ({"user": None}, 400, "INVALID_REQUEST"),
        ({"currency": None}, 400, "INVALID_REQUEST"),
        ({"currency": "₽"}, 400, "INVALID_REQUEST"),
    ],
)
def test_a_wallet_needs_a_user_and_a_currency(
    shop: Caller, buyer: User, fields: dict[str, Any], status: int, code: str
) -> None:
    wanted = {"user": str(buyer.pk), "currency": "RUB", **fields}
    assert told(shop.post("/api/wallets", wanted)) == (status, code)
    assert not Wallet.objects.exists()


def test_a_wallet_shows_its_last_entries(shop: Caller, wallet: Wallet) -> None:
    for amount in range(1, 25):
        credit(wallet_id=wallet.pk, amount=Decimal(amount), kind=EntryKind.MANUAL, payment_id=None)

    entries = shop.get(f"/api/wallets/{wallet.pk}").json()["entries"]

    assert [entry["amount"] for entry in entries] == [str(n) for n in range(24, 4, -1)]
    assert entries[0]["balance_after"] == "400"
    assert told(shop.get(f"/api/wallets/{uuid4()}")) == (404, "NO_SUCH_WALLET")


def test_money_is_reserved_and_spent_once(shop: Caller, wallet: Wallet) -> None:
    payment_id = uuid4()

    first, again = (_reserve(shop, wallet, payment_id) for _ in range(2))
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert first.json()["status"] == "RESERVED"
    assert _money(shop, wallet) == ("100", "60", "40")

    first, again = (_finish(shop, wallet, payment_id, "commit") for _ in range(2))
    assert (first.status_code, again.status_code) == (200, 200)
    assert first.json() == again.json()
    assert (first.json()["status"], first.json()["amount"]) == ("COMMITTED", "60")
    assert _money(shop, wallet) == ("40", "0", "40")
    assert WalletEntry.objects.filter(payment_id=payment_id).count() == 1
    assert _actions() == ["wallet_reserved", "wallet_committed"]

    assert told(_finish(shop, wallet, payment_id, "release")) == (409, "RESERVATION_COMMITTED")
    assert _money(shop, wallet) == ("40", "0", "40")


def test_money_is_released_once(shop: Caller, wallet: Wallet) -> None:
    payment_id = uuid4()
    _reserve(shop, wallet, payment_id)

    first, again = (_finish(shop, wallet, payment_id, "release") for _ in range(2))

    assert (first.status_code, again.status_code) == (200, 200)
    assert (first.json(), first.json()["status"]) == (again.json(), "RELEASED")
    assert _money(shop, wallet) == ("100", "0", "100")
    assert told(_finish(shop, wallet, payment_id, "commit")) == (409, "RESERVATION_RELEASED")
    assert _money(shop, wallet) == ("100", "0", "100")
    assert _actions() == ["wallet_reserved", "wallet_released"]


@pytest.mark.parametrize(
    ("amount", "status", "code"),
    [
        ("100.01", 409, "INSUFFICIENT_FUNDS"),
        ("0", 400, "INVALID_REQUEST"),
        ("-5", 400, "INVALID_REQUEST"),
        ("1.001", 400, "INVALID_REQUEST"),
        (None, 400, "INVALID_REQUEST"),
        ({}, 400, "INVALID_REQUEST"),
    ],
)
def test_what_cannot_be_reserved_leaves_nothing(
    shop: Caller, wallet: Wallet, amount: Any, status: int, code: str
) -> None:
    before = contents()

    assert told(_reserve(shop, wallet, uuid4(), amount)) == (status, code)

    assert contents() == before


def test_a_payment_has_one_reservation(shop: Caller, wallet: Wallet) -> None:
    payment_id = uuid4()
    _reserve(shop, wallet, payment_id)

    assert told(_reserve(shop, wallet, payment_id, "61")) == (409, "OTHER_RESERVATION")

    assert Reservation.objects.get().amount == 60


@pytest.mark.parametrize("how", ["commit", "release"])
def test_a_reservation_is_finished_at_its_own_wallet(
    shop: Caller, wallet: Wallet, how: str
) -> None:
    other = open_wallet(user_id=UserFactory.create().pk, currency="RUB")
    payment_id = uuid4()
    _reserve(shop, wallet, payment_id)

    assert told(_finish(shop, other, payment_id, how)) == (404, "NO_SUCH_RESERVATION")
    assert told(_finish(shop, wallet, uuid4(), how)) == (404, "NO_SUCH_RESERVATION")

    assert Reservation.objects.get().status == "RESERVED"


def test_what_a_payment_holds_is_spent_by_its_success_only(
    shop: Caller, buyer: User, wallet: Wallet
) -> None:
    payment_id = uuid4()
    shop.post(
        "/api/payments",
        {
            "payment_id": str(payment_id),
            "user": str(buyer.pk),
            "amount": "60",
            "currency": "RUB",
            "provider": "tilda",
            "wallet": str(wallet.pk),
        },
    )
    assert Payment.objects.get().status == "PROCESSING"

    answer = _finish(shop, wallet, payment_id, "commit")

    assert told(answer) == (409, "RESERVATION_FOLLOWS_PAYMENT")
    assert _money(shop, wallet) == ("100", "60", "40")
    # To let go of it takes nobody's money: a success that comes later is a person's to decide.
    assert _finish(shop, wallet, payment_id, "release").status_code == 200
