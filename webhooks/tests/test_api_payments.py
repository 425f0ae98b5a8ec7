from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from billing.models import EntryKind, OutboxMessage, Payment, PaymentView, Reservation, Wallet
from billing.outbox import read_model
from billing.outbox.read_model import take
from billing.wallets import credit, open_wallet
from subscriptions.models import User
from tests.looking import contents
from tests.sending import deliver, paid, result
from webhooks import linking
from webhooks.models import AuditEntry
from webhooks.tests.calling import Caller, service, told

pytestmark = pytest.mark.django_db

INVALID = (400, "INVALID_REQUEST")

START = datetime(2024, 1, 1, tzinfo=UTC)


@pytest.fixture
def shop(db: None) -> Caller:
    return service(name="shop")


@pytest.fixture
def wallet(buyer: User) -> Wallet:
    wallet = open_wallet(user_id=buyer.pk, currency="RUB")
    credit(wallet_id=wallet.pk, amount=Decimal(100), kind=EntryKind.MANUAL, payment_id=None)
    return wallet


def _wanted(user: User, /, **fields: Any) -> dict[str, Any]:
    return {
        "payment_id": str(uuid4()),
        "user": str(user.pk),
        "amount": "60.00",
        "currency": "RUB",
        "provider": "tilda",
        **fields,
    }


def _take_all() -> None:
    for message in OutboxMessage.objects.order_by("key", "seq"):
        take(read_model._envelope(message))


def test_a_payment_is_started_and_then_read_from_the_read_model(
    shop: Caller, buyer: User, wallet: Wallet
) -> None:
    wanted = _wanted(buyer, wallet=str(wallet.pk), merchant_uid="order-1")

    answer = shop.post("/api/payments", wanted)

    assert answer.status_code == 201
    made = answer.json()
    assert made["payment_id"] == wanted["payment_id"]
    assert (made["status"], made["amount"], made["user"]) == ("PROCESSING", "60", str(buyer.pk))
    assert Reservation.objects.get().amount == 60
    assert told(shop.get(f"/api/payments/{made['payment_id']}")) == (404, "NO_SUCH_PAYMENT")
    _take_all()
    assert shop.get(f"/api/payments/{made['payment_id']}").json() == made
    entry = AuditEntry.objects.get(action="payment_initiated")
    assert (entry.actor, str(entry.payment_id)) == ("service:shop", made["payment_id"])


def test_the_same_again_is_200_and_other_content_409(shop: Caller, buyer: User) -> None:
    wanted = _wanted(buyer)
    first = shop.post("/api/payments", wanted)

    again = shop.post("/api/payments", wanted)

    assert (again.status_code, again.json()) == (200, first.json())
    assert AuditEntry.objects.filter(action="payment_initiated").count() == 1
    other = shop.post("/api/payments", {**wanted, "amount": "61"})
    assert told(other) == (409, "OTHER_PAYMENT")
    assert Payment.objects.get().amount == 60


def test_too_little_money_is_a_clear_refusal_that_leaves_nothing(
    shop: Caller, buyer: User, wallet: Wallet
) -> None:
    before = contents()

    answer = shop.post("/api/payments", _wanted(buyer, amount="100.01", wallet=str(wallet.pk)))

    assert told(answer) == (409, "INSUFFICIENT_FUNDS")
    assert contents() == before


@pytest.mark.parametrize(
    ("fields", "expected", "names"),
    [
        ({"payment_id": None}, INVALID, "payment_id"),
        ({"payment_id": "1"}, INVALID, "payment_id"),
        ({"user": None}, INVALID, "user"),
        ({"user": str(uuid4())}, (404, "NO_SUCH_USER"), "user"),
        ({"wallet": str(uuid4())}, (404, "NO_SUCH_WALLET"), "wallet"),
        ({"amount": "60.001"}, INVALID, "amount"),
        ({"currency": None}, INVALID, "currency"),
        ({"provider": None}, INVALID, "provider"),
        ({"provider_txn_id": []}, INVALID, "provider_txn_id"),
    ],
)
def test_a_wrong_field_is_named(
    shop: Caller, buyer: User, fields: dict[str, Any], expected: tuple[int, str], names: str
) -> None:
    answer = shop.post("/api/payments", _wanted(buyer, **fields))

    assert told(answer) == expected
    assert names in answer.json()["error"]["message"]
    assert not Payment.objects.exists()


def test_fields_that_are_not_the_callers_are_ignored(shop: Caller, buyer: User) -> None:
    wanted = _wanted(buyer, status="SUCCEEDED", subscription_applied_at="2024-01-01T00:00:00Z")

    assert shop.post("/api/payments", wanted).json()["status"] == "PROCESSING"
    assert Payment.objects.get().subscription_applied_at is None


def test_the_providers_name_is_learnt_later(shop: Caller, buyer: User) -> None:
    wanted = _wanted(buyer)
    shop.post("/api/payments", wanted)
    url = f"/api/payments/{wanted['payment_id']}/provider-txn"

    for _ in range(2):
        answer = shop.post(url, {"provider_txn_id": "txn-1"})
        assert (answer.status_code, answer.json()["provider_txn_id"]) == (200, "txn-1")

    assert AuditEntry.objects.get(action="payment_named").actor == "service:shop"
    assert told(shop.post(url, {"provider_txn_id": "txn-2"})) == (409, "OTHER_PROVIDER_TXN_ID")
    assert told(shop.post(url, {})) == (400, "INVALID_REQUEST")
    assert Payment.objects.get().provider_txn_id == "txn-1"
    nowhere = f"/api/payments/{uuid4()}/provider-txn"
    assert told(shop.post(nowhere, {"provider_txn_id": "txn-3"})) == (404, "NO_SUCH_PAYMENT")


def test_a_name_belongs_to_one_payment(shop: Caller, buyer: User) -> None:
    shop.post("/api/payments", _wanted(buyer, provider_txn_id="txn-1"))
    second = _wanted(buyer)
    shop.post("/api/payments", second)

    answer = shop.post(
        f"/api/payments/{second['payment_id']}/provider-txn", {"provider_txn_id": "txn-1"}
    )

    assert told(answer) == (409, "NAME_TAKEN")
    third = shop.post("/api/payments", _wanted(buyer, provider_txn_id="txn-1"))
    assert told(third) == (409, "NAME_TAKEN")
    assert Payment.objects.count() == 2


@pytest.mark.django_db(transaction=True)
def test_callbacks_that_waited_run_after_the_commit(
    buyer: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[UUID, bool]] = []

    def look(payment: Payment) -> int:
        seen.append((payment.pk, connection.in_atomic_block))
        return 0

    monkeypatch.setattr(linking, "run_waiting_callbacks", look, raising=False)
    shop = service()
    named, nameless = _wanted(buyer, provider_txn_id="txn-1"), _wanted(buyer)

    shop.post("/api/payments", named)
    shop.post("/api/payments", nameless)
    assert seen == [(UUID(named["payment_id"]), False)]

    url = f"/api/payments/{nameless['payment_id']}/provider-txn"
    shop.post(url, {"provider_txn_id": "txn-2"})
    assert seen[1:] == [(UUID(nameless["payment_id"]), False)]


@pytest.mark.django_db(transaction=True)
def test_the_providers_word_reaches_the_read_model(buyer: User, wallet: Wallet) -> None:
    """Started here, told of by the provider under its own name, and shown."""
    shop = service()
    wanted = _wanted(buyer, wallet=str(wallet.pk))
    shop.post("/api/payments", wanted)
    url = f"/api/payments/{wanted['payment_id']}"
    shop.post(f"{url}/provider-txn", {"provider_txn_id": "txn-1"})

    told_so = deliver(paid(external_payment_id="txn-1", amount="60.00", email=None))

    assert result(told_so) == (200, "processed")
    _take_all()
    shown = shop.get(url).json()
    assert (shown["status"], shown["provider_txn_id"]) == ("SUCCEEDED", "txn-1")
    assert Reservation.objects.get().status == "COMMITTED"
    _take_all()
    assert shop.get(url).json() == shown


def _row(number: int, **fields: Any) -> PaymentView:
    return PaymentView.objects.create(
        **{
            "payment_id": UUID(int=number),
            "seq": 1,
            "told_at": START,
            "provider": "tilda",
            "external_payment_id": f"pay-{number}",
            "status": "SUCCEEDED",
            "amount": Decimal("10.5"),
            "currency": "RUB",
            "amount_refunded": 0,
            "created_at": START + timedelta(hours=number),
            **fields,
        }
    )


def _numbers(answer: Any) -> list[int]:
    return [UUID(row["payment_id"]).int for row in answer.json()["results"]]


def test_payments_are_filtered(shop: Caller) -> None:
    user = uuid4()
    _row(1, user_id=user, merchant_uid="order-1")
    _row(2, status="FAILED")
    _row(3, provider="stripe", user_id=user)
    moment = quote((START + timedelta(hours=2)).isoformat())

    assert _numbers(shop.get("/api/payments")) == [3, 2, 1]
    assert _numbers(shop.get("/api/payments?status=FAILED")) == [2]
    assert _numbers(shop.get(f"/api/payments?user={user}")) == [3, 1]
    assert _numbers(shop.get("/api/payments?provider=stripe")) == [3]
    assert _numbers(shop.get("/api/payments?merchant_uid=order-1")) == [1]
    assert _numbers(shop.get(f"/api/payments?created_from={moment}")) == [3, 2]
    assert _numbers(shop.get(f"/api/payments?created_to={moment}")) == [1]
    assert _numbers(shop.get(f"/api/payments?user={user}&status=SUCCEEDED&provider=tilda")) == [1]


def test_pages_do_not_shift_while_rows_arrive(shop: Caller) -> None:
    for number in range(1, 8):
        # Three of one moment: the page's edge falls among them.
        _row(number, created_at=START + timedelta(hours=number // 3))
    seen: list[int] = []
    url = "/api/payments?limit=2"
    while url:
        answer = shop.get(url)
        seen += _numbers(answer)
        url = answer.json()["next"] or ""
        _row(100 + len(seen), created_at=START + timedelta(days=9))

    assert seen == [7, 6, 5, 4, 3, 2, 1]


def test_a_page_has_a_cap(shop: Caller) -> None:
    PaymentView.objects.bulk_create(
        PaymentView(
            payment_id=UUID(int=number),
            seq=1,
            told_at=START,
            provider="tilda",
            external_payment_id=str(number),
            status="FAILED",
            amount_refunded=0,
            created_at=START,
        )
        for number in range(1, 203)
    )

    assert len(_numbers(shop.get("/api/payments"))) == 50
    assert len(_numbers(shop.get("/api/payments?limit=100000"))) == 200


@pytest.mark.parametrize("cursor", ["x", "cD1nYXJiYWdl", "cD0lMDA=", "bz0tMQ==", "%00", "é"])
def test_a_cursor_that_is_none_is_refused(shop: Caller, cursor: str) -> None:
    _row(1)
    answer = shop.get(f"/api/payments?cursor={quote(cursor, safe='%')}")
    assert answer.status_code in (200, 400, 404)
    if answer.status_code != 200:
        told(answer)


def test_reading_touches_nothing_but_the_read_model(shop: Caller) -> None:
    _row(1)
    for url in ("/api/payments", f"/api/payments/{UUID(int=1)}"):
        with CaptureQueriesContext(connection) as captured:
            assert shop.get(url).status_code == 200
        tables = [query["sql"] for query in captured.captured_queries if "FROM" in query["sql"]]
        assert any("billing_paymentview" in sql for sql in tables)
        assert not any('"billing_payment"' in sql for sql in tables)
