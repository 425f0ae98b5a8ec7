from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import quote
from uuid import uuid4

import pytest
from django.db import connection
from django.db.models import F

from billing.models import Booking, Order, Wallet
from subscriptions.models import Plan, User
from tests.factories import StaffFactory, UserFactory
from tests.looking import contents
from tests.sending import deliver, paid, result
from webhooks import linking
from webhooks.models import AuditEntry
from webhooks.tests.calling import Caller, at_a_browser, service, told

pytestmark = pytest.mark.django_db

INVALID = (400, "INVALID_REQUEST")


@pytest.fixture
def shop(db: None) -> Caller:
    return service(name="shop")


def _wanted(user: User, /, **fields: Any) -> dict[str, Any]:
    return {
        "merchant_uid": "order-1",
        "buys": "BOOKING",
        "user": str(user.pk),
        "amount": "990.50",
        "currency": "RUB",
        "reference": "room 7",
        **fields,
    }


def test_an_order_is_made_and_shown(shop: Caller, buyer: User) -> None:
    answer = shop.post("/api/orders", _wanted(buyer))

    assert answer.status_code == 201
    made = dict(answer.json())
    assert made.pop("created_at") == Order.objects.get().created_at.isoformat()
    assert made == {
        "merchant_uid": "order-1",
        "buys": "BOOKING",
        "status": "PENDING",
        "amount": "990.5",
        "currency": "RUB",
        "user": str(buyer.pk),
        "plan": None,
        "wallet": None,
        "booking": {"reference": "room 7", "status": "PENDING", "paid_at": None},
        "paid_at": None,
    }
    assert shop.get("/api/orders/order-1").json() == answer.json()


def test_a_subscription_and_a_topup_are_ordered(shop: Caller, buyer: User, monthly: Plan) -> None:
    plan = shop.post(
        "/api/orders", _wanted(buyer, buys="SUBSCRIPTION", plan="monthly", reference=None)
    )
    topup = shop.post(
        "/api/orders",
        _wanted(buyer, merchant_uid="order-2", buys="WALLET_TOPUP", reference=None, amount=5),
    )

    assert (plan.status_code, plan.json()["plan"]) == (201, "monthly")
    assert topup.json()["wallet"] == str(Wallet.objects.get(user=buyer).pk)
    assert topup.json()["amount"] == "5"


def test_the_audit_says_who_ordered(shop: Caller, buyer: User) -> None:
    staff = StaffFactory.create()
    shop.post("/api/orders", _wanted(buyer))
    shop.post("/api/orders", _wanted(buyer))
    at_a_browser(staff).post("/api/orders", _wanted(buyer, merchant_uid="order-2"))

    entries = AuditEntry.objects.filter(action="order_created").order_by("at")
    assert [entry.actor for entry in entries] == ["service:shop", f"staff:{staff.pk}"]
    assert [entry.details["merchant_uid"] for entry in entries] == ["order-1", "order-2"]
    assert {entry.user_id for entry in entries} == {buyer.pk}


def test_the_same_again_is_200_and_other_content_409(shop: Caller, buyer: User) -> None:
    first = shop.post("/api/orders", _wanted(buyer))
    again = shop.post("/api/orders", _wanted(buyer))
    before = contents()

    other = shop.post("/api/orders", _wanted(buyer, amount="1"))

    assert (again.status_code, again.json()) == (200, first.json())
    assert told(other) == (409, "OTHER_ORDER")
    assert contents() == before


@pytest.mark.parametrize(
    ("fields", "expected", "names"),
    [
        ({"merchant_uid": None}, INVALID, "merchant_uid"),
        ({"merchant_uid": ""}, INVALID, "merchant_uid"),
        ({"merchant_uid": "x" * 256}, INVALID, "merchant_uid"),
        ({"merchant_uid": "a\0"}, INVALID, "merchant_uid"),
        ({"buys": "EVERYTHING"}, INVALID, "buys"),
        ({"buys": ["BOOKING"]}, INVALID, "buys"),
        ({"buys": "SUBSCRIPTION", "reference": None}, INVALID, "plan"),
        ({"plan": "monthly"}, INVALID, "plan"),
        ({"user": "somebody"}, INVALID, "user"),
        ({"user": 7}, INVALID, "user"),
        ({"user": f"urn:uuid:{uuid4()}"}, INVALID, "user"),
        ({"user": str(uuid4())}, (404, "NO_SUCH_USER"), "user"),
        ({"amount": None}, INVALID, "amount"),
        ({"amount": "1.001"}, INVALID, "amount"),
        ({"amount": -1}, INVALID, "amount"),
        ({"amount": True}, INVALID, "amount"),
        ({"currency": "rouble"}, INVALID, "currency"),
        ({"wallet": "x"}, INVALID, "wallet"),
        ({"reference": {}}, INVALID, "reference"),
        (
            {"buys": "SUBSCRIPTION", "plan": "nothing", "reference": None},
            (404, "NO_SUCH_PLAN"),
            "plan",
        ),
        (
            {"buys": "WALLET_TOPUP", "wallet": str(uuid4()), "reference": None},
            (404, "NO_SUCH_WALLET"),
            "wallet",
        ),
    ],
)
def test_a_wrong_field_is_named(
    shop: Caller, buyer: User, fields: dict[str, Any], expected: tuple[int, str], names: str
) -> None:
    answer = shop.post("/api/orders", _wanted(buyer, **fields))

    assert told(answer) == expected
    assert names in answer.json()["error"]["message"]
    assert not Order.objects.exists()


def test_fields_that_are_not_the_callers_are_ignored(shop: Caller, buyer: User) -> None:
    answer = shop.post(
        "/api/orders",
        _wanted(buyer, status="PAID", paid_at="2024-01-01T00:00:00Z", id=str(uuid4()), user_id=1),
    )

    assert answer.status_code == 201
    order = Order.objects.get()
    assert (order.status, order.paid_at) == ("PENDING", None)


@pytest.mark.parametrize("uid", ["a/b", "a b", "%", "Ünï-код", "a?b#c", "..", "'; --"])
def test_whatever_the_uid_the_order_is_found(shop: Caller, buyer: User, uid: str) -> None:
    shop.post("/api/orders", _wanted(buyer, merchant_uid=uid))

    for slash in ("", "/"):
        assert shop.get(f"/api/orders/{quote(uid, safe='')}{slash}").json()["merchant_uid"] == uid


def test_an_order_that_is_not_there_is_404(shop: Caller) -> None:
    assert told(shop.get("/api/orders/nothing")) == (404, "NO_SUCH_ORDER")
    assert told(shop.get("/api/orders/%00")) == (404, "NO_SUCH_ORDER")


def _uids(answer: Any) -> list[str]:
    return [row["merchant_uid"] for row in answer.json()["results"]]


def test_orders_are_listed_newest_first_and_filtered(shop: Caller, buyer: User) -> None:
    other = UserFactory.create()
    for number, user in enumerate((buyer, buyer, other)):
        shop.post("/api/orders", _wanted(user, merchant_uid=f"order-{number}"))
        Order.objects.filter(merchant_uid=f"order-{number}").update(
            created_at=F("created_at") - timedelta(days=10 - number)
        )
    Order.objects.filter(merchant_uid="order-1").update(status="CANCELED")
    moment = quote(Order.objects.get(merchant_uid="order-1").created_at.isoformat())

    assert _uids(shop.get("/api/orders")) == ["order-2", "order-1", "order-0"]
    assert _uids(shop.get("/api/orders?status=CANCELED")) == ["order-1"]
    assert _uids(shop.get(f"/api/orders?user={other.pk}")) == ["order-2"]
    assert _uids(shop.get("/api/orders?merchant_uid=order-0")) == ["order-0"]
    assert _uids(shop.get(f"/api/orders?created_from={moment}")) == ["order-2", "order-1"]
    assert _uids(shop.get(f"/api/orders?created_to={moment}")) == ["order-0"]
    assert _uids(shop.get(f"/api/orders?status=PAID&user={buyer.pk}")) == []


@pytest.mark.parametrize(
    "query", ["status=paid", "user=7", "created_from=yesterday", "statu=PAID", "merchant_uid=%00"]
)
def test_a_filter_that_cannot_be_read_is_refused(shop: Caller, query: str) -> None:
    assert told(shop.get(f"/api/orders?{query}")) == (400, "INVALID_REQUEST")


@pytest.mark.django_db(transaction=True)
def test_payments_that_waited_for_the_order_are_looked_at_after_the_commit(
    buyer: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Should that fail, the order is there all the same, and the sweep goes on with it."""
    seen: list[tuple[str, bool]] = []

    def look(order: Order) -> int:
        seen.append((order.merchant_uid, connection.in_atomic_block))
        raise RuntimeError

    monkeypatch.setattr(linking, "link_payments_of_order", look, raising=False)
    shop = service()

    assert shop.post("/api/orders", _wanted(buyer)).status_code == 201
    assert shop.post("/api/orders", _wanted(buyer, amount="1")).status_code == 409

    assert seen == [("order-1", False)]
    assert Booking.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_what_was_paid_before_the_order_came_is_applied_at_once(buyer: User) -> None:
    payload = paid(merchant_uid="order-1", amount="990.50", email=None)
    assert result(deliver(payload))[0] == 200
    shop = service()

    assert shop.post("/api/orders", _wanted(buyer)).status_code == 201

    shown = shop.get("/api/orders/order-1").json()
    assert (shown["status"], shown["booking"]["status"]) == ("PAID", "CONFIRMED")
    assert shown["paid_at"] is not None
