"""Payments that start here and are paid from a wallet: what must not be had for nothing."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db.models.functions import Now

from billing import wallets
from billing.initiating import Initiation, WrongWallet, initiate, record_refused
from billing.models import EntryKind, Grant, Order, OutboxMessage, Payment, Reservation, Wallet
from subscriptions.models import User
from tests.factories import BookingFactory, OrderFactory, UserFactory
from tests.people import ANNA
from tests.sending import deliver, paid, result
from webhooks import linking, review
from webhooks.models import AuditEntry, WebhookEvent
from webhooks.recovery import recover

pytestmark = pytest.mark.django_db


@pytest.fixture
def wallet(buyer: User) -> Wallet:
    wallet = wallets.open_wallet(user_id=buyer.pk, currency="RUB")
    wallets.credit(
        wallet_id=wallet.pk, amount=Decimal(1000), kind=EntryKind.MANUAL, payment_id=None
    )
    return wallet


def _start(wallet: Wallet, amount: str, **fields: object) -> UUID:
    asked = {
        "payment_id": uuid4(),
        "user_id": wallet.user_id,
        "amount": Decimal(amount),
        "currency": "RUB",
        "provider": "tilda",
        "wallet_id": wallet.pk,
        **fields,
    }
    return initiate(Initiation(**asked))[0].pk  # type: ignore[arg-type]


def _booking(buyer: User, amount: str) -> Order:
    order = OrderFactory.create(
        merchant_uid="A-1", buys="BOOKING", plan=None, amount=amount, currency="RUB", user=buyer
    )
    BookingFactory.create(order=order)
    return order


def _balance() -> tuple[int, int]:
    row = Wallet.objects.get()
    return int(row.balance), int(row.reserved)


def test_an_order_is_paid_from_the_wallet_and_given_back_with_it(
    buyer: User, wallet: Wallet
) -> None:
    _booking(buyer, "400")
    payment = _start(wallet, "400", merchant_uid="A-1")
    callback = paid(external_payment_id=str(payment), email=None, amount="400")

    assert result(deliver(callback)) == (200, "processed")
    assert (Grant.objects.get().kind, _balance()) == ("BOOKING", (600, 0))

    deliver({**callback, "event_id": "back", "status": "refunded"})
    assert (Order.objects.get().status, _balance()) == ("REFUNDED", (1000, 0))


def test_a_wallet_cannot_pay_less_than_the_order_costs(buyer: User, wallet: Wallet) -> None:
    _booking(buyer, "400")
    payment = _start(wallet, "1", merchant_uid="A-1")

    answer = deliver(paid(external_payment_id=str(payment), email=None, amount="400"))

    assert result(answer) == (200, "failed_final")
    assert WebhookEvent.objects.get().error_code == "AMOUNT_MISMATCH"
    assert not Grant.objects.exists()


def test_what_the_wallet_had_no_money_for_is_not_had_for_nothing(
    buyer: User, wallet: Wallet
) -> None:
    _booking(buyer, "4000")
    asked = Initiation(
        payment_id=uuid4(),
        user_id=buyer.pk,
        amount=Decimal(4000),
        currency="RUB",
        provider="tilda",
        wallet_id=wallet.pk,
        merchant_uid="A-1",
    )
    record_refused(asked, "too little money")

    deliver(paid(external_payment_id=str(asked.payment_id), email=None, amount="4000"))

    assert WebhookEvent.objects.get().error_code == "LATE_SUCCESS"
    assert not Grant.objects.exists()


def test_nobody_else_pays_a_payment_that_was_started(wallet: Wallet) -> None:
    payment = _start(wallet, "400", wallet_id=None)
    other = wallets.open_wallet(user_id=UserFactory.create().pk, currency="RUB")
    wallets.credit(wallet_id=other.pk, amount=Decimal(900), kind=EntryKind.MANUAL, payment_id=None)

    with pytest.raises(wallets.OtherReservation):
        wallets.reserve(payment_id=payment, wallet_id=other.pk, amount=Decimal(400))
    with pytest.raises(wallets.OtherReservation):
        wallets.reserve(payment_id=payment, wallet_id=wallet.pk, amount=Decimal(1))
    early = uuid4()
    wallets.reserve(payment_id=early, wallet_id=other.pk, amount=Decimal(400))
    with pytest.raises(WrongWallet):
        _start(wallet, "400", wallet_id=None, payment_id=early)


def test_dismissing_a_payment_lets_its_money_go(buyer: User, wallet: Wallet) -> None:
    payment = _start(wallet, "400")
    deliver(paid(event_id="e", external_payment_id=str(payment), email=None, amount="300"))
    assert WebhookEvent.objects.get().error_code == "AMOUNT_MISMATCH"
    assert _balance() == (1000, 400)

    review.dismiss(WebhookEvent.objects.get(), ANNA, "refunded there")

    assert _balance() == (1000, 0)
    assert Reservation.objects.get().status == "RELEASED"
    entry = AuditEntry.objects.get(action="reservation_released")
    assert (entry.actor, entry.reason, entry.payment_id) == (ANNA.name, "refunded there", payment)
    assert OutboxMessage.objects.filter(key=payment, type="ReservationReleased").count() == 1
    assert Payment.objects.get().status == "SUCCEEDED"


def test_a_callback_that_was_given_up_is_taken_when_its_payment_is_told_of(
    wallet: Wallet, settings: Any
) -> None:
    settings.INITIATED_PROVIDERS = ("tilda",)
    deliver(paid(external_payment_id="txn-7", email=None, amount="400"))
    assert WebhookEvent.objects.get().error_code == "PAYMENT_UNKNOWN"
    last = settings.WEBHOOK_MAX_ATTEMPTS - 1
    WebhookEvent.objects.update(attempts=last, next_attempt_at=Now() - timedelta(hours=1))
    recover(for_s=5)
    event = WebhookEvent.objects.get()
    assert (event.error_code, event.review) == ("RETRIES_EXHAUSTED", "OPEN")

    linking.sweep_linkable_payments()
    assert WebhookEvent.objects.get().status == "FAILED_FINAL"
    # By a message, say: nobody runs the callback then.
    _start(wallet, "400", provider_txn_id="txn-7")
    linking.sweep_linkable_payments()

    event.refresh_from_db()
    assert (event.status, event.review) == ("PROCESSED", "RESOLVED")
    assert _balance() == (600, 0)
