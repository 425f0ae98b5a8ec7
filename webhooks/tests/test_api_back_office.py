"""Orders, bookings, wallets, the read model and tokens in the back office: to see, not to edit."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import uuid4

import pytest
from django.contrib import admin
from django.db.models import Model
from django.test import RequestFactory

from billing.models import Booking, EntryKind, Order, PaymentView, Wallet, WalletEntry
from billing.ordering import create_order
from billing.wallets import credit, open_wallet, reserve
from subscriptions.models import User
from tests.factories import StaffFactory
from webhooks.admin.orders import ROWS_SHOWN
from webhooks.models import ServiceToken
from webhooks.tests.calling import service
from webhooks.tests.test_admin import Staff

pytestmark = pytest.mark.django_db


@pytest.fixture
def staff(db: None) -> Staff:
    return Staff(StaffFactory.create(email="staff@example.com"))


@pytest.fixture
def order(buyer: User) -> Order:
    return create_order(
        merchant_uid="<b>order</b>",
        buys="BOOKING",
        user_id=buyer.pk,
        amount="990.50",
        currency="RUB",
        booking_reference="room 7",
    )[0]


@pytest.mark.parametrize("model", [Order, Booking, Wallet, PaymentView, ServiceToken])
def test_nobody_edits_them(model: type[Model], rf: RequestFactory) -> None:
    request = rf.get("/admin/")
    request.user = StaffFactory.create()
    registered = admin.site._registry[model]

    assert not registered.has_add_permission(request)
    assert not registered.has_change_permission(request)
    assert not registered.has_delete_permission(request)
    assert "delete_selected" not in registered.get_actions(request)


def test_orders_and_bookings_are_found(staff: Staff, order: Order) -> None:
    found = staff.get("billing_order_changelist", q="<b>order</b>").content.decode()
    assert "990.5 RUB" in found
    assert "<b>order</b>" not in found
    assert (
        "990.5 RUB" in staff.get("billing_order_changelist", q="BUYER@example.com").content.decode()
    )
    assert "990.5 RUB" not in staff.get("billing_order_changelist", q="order").content.decode()
    assert "room 7" in staff.get("billing_order_change", order.pk).content.decode()
    assert "room 7" in staff.get("billing_booking_changelist", q="room 7").content.decode()


def test_a_wallet_shows_its_newest_entries_and_reservations(staff: Staff, buyer: User) -> None:
    wallet = open_wallet(user_id=buyer.pk, currency="RUB")
    for _ in range(ROWS_SHOWN + 1):
        credit(wallet_id=wallet.pk, amount=Decimal(1), kind=EntryKind.MANUAL, payment_id=None)
    payment_id = uuid4()
    reserve(payment_id=payment_id, wallet_id=wallet.pk, amount=Decimal(7))

    page = staff.get("billing_wallet_change", wallet.pk)

    assert str(payment_id) in page.content.decode()
    assert _entries(page) == list(
        WalletEntry.objects.order_by("-pk").values_list("pk", flat=True)[:ROWS_SHOWN]
    )
    assert str(wallet.pk) in staff.get("billing_wallet_changelist").content.decode()


def _entries(page: Any) -> list[int]:
    (formset,) = (
        inline.formset
        for inline in page.context["inline_admin_formsets"]
        if inline.formset.model is WalletEntry
    )
    return [form.instance.pk for form in formset.forms]


def test_the_read_model_and_tokens_are_listed(staff: Staff, order: Order) -> None:
    service(name="shop")
    row = PaymentView.objects.create(
        payment_id=uuid4(),
        seq=1,
        told_at=order.created_at,
        provider="tilda",
        external_payment_id="pay-1",
        status="SUCCEEDED",
        amount=Decimal("10.5"),
        currency="RUB",
        amount_refunded=0,
        created_at=order.created_at,
    )

    assert "10.5 RUB" in staff.get("billing_paymentview_changelist", q="pay-1").content.decode()
    assert "pay-1" in staff.get("billing_paymentview_change", row.pk).content.decode()
    assert "shop" in staff.get("webhooks_servicetoken_changelist").content.decode()
