"""What others hear of: which messages, in which order, and never one twice."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.db.models.functions import Now

from billing.models import Booking, OutboxDelivery, OutboxMessage, Payment, Wallet
from billing.outbox.messages import write
from subscriptions.models import Plan, Subscription, User
from tests.factories import BookingFactory, OrderFactory, TopupFactory, UserFactory
from tests.looking import event_of
from tests.people import ANNA
from tests.sending import deliver, paid
from webhooks import review, tasks
from webhooks.linking import link_payments_of_order

pytestmark = pytest.mark.django_db


def _tell(status: str, **fields: Any) -> None:
    deliver(paid(external_payment_id="p", status=status, **fields))


def _told(key: UUID | None = None) -> list[str]:
    """Of the one payment there is. Without gaps, or consumers wait for what never comes."""
    key = key or Payment.objects.get().pk
    messages = OutboxMessage.objects.filter(key=key).order_by("seq")
    assert [message.seq for message in messages] == list(range(1, len(messages) + 1))
    return [message.type for message in messages]


def test_a_payment_that_is_applied(buyer: User, monthly: Plan) -> None:
    _tell("paid")

    assert _told() == [
        "ProviderCallbackReceived",
        "PaymentSucceeded",
        "PaymentLinked",
        "SubscriptionExtended",
    ]


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ("pending", "PaymentProcessing"),
        ("failed", "PaymentFailed"),
        ("canceled", "PaymentCanceled"),
        ("refunded", "PaymentRefunded"),
    ],
)
def test_a_payment_that_comes_to_nothing(status: str, message: str) -> None:
    _tell(status)

    assert _told() == ["ProviderCallbackReceived", message]


def test_a_status_that_does_not_change_is_not_told_again(buyer: User, monthly: Plan) -> None:
    _tell("paid")
    before = _told()

    _tell("paid")
    _tell("failed")

    assert _told() == [*before, "ProviderCallbackReceived", "ProviderCallbackReceived"]


def test_a_refund(buyer: User, monthly: Plan) -> None:
    _tell("paid")
    _tell("refunded")

    assert _told()[4:] == ["ProviderCallbackReceived", "PaymentRefunded", "SubscriptionRevoked"]


def test_a_booking_confirmed_and_canceled(buyer: User) -> None:
    booking = BookingFactory.create(order__user=buyer, order__amount="990")
    _tell("paid", merchant_uid=booking.order.merchant_uid)
    _tell("refunded")

    assert _told() == [
        "ProviderCallbackReceived",
        "PaymentSucceeded",
        "PaymentLinked",
        "BookingConfirmed",
        "ProviderCallbackReceived",
        "PaymentRefunded",
        "BookingCanceled",
    ]
    confirmed = OutboxMessage.objects.get(type="BookingConfirmed")
    assert confirmed.data["booking_id"] == str(Booking.objects.get().pk)


def test_a_wallet_credited_and_debited(buyer: User) -> None:
    order = TopupFactory.create(user=buyer, amount="990")
    _tell("paid", merchant_uid=order.merchant_uid)
    _tell("refunded")

    for kind in ("WalletCredited", "WalletDebited"):
        data = OutboxMessage.objects.get(type=kind).data
        assert (data["wallet_id"], data["amount"]) == (str(Wallet.objects.get().pk), "990")


def test_a_partial_refund_and_what_a_person_made_of_it(buyer: User, monthly: Plan) -> None:
    _tell("paid")
    _tell("partially_refunded", refund_id="a", amount="330", event_id="a")
    _tell("partially_refunded", refund_id="a", amount="330", event_id="again")
    review.shorten(event_of("a"), ANNA, "a third")
    _tell("disputed", event_id="d")
    review.revoke(event_of("d"), ANNA, "fraud")
    _tell("dispute_won", event_id="w")
    review.reinstate(event_of("w"), ANNA, "it was not")

    types = [kind for kind in _told() if kind != "ProviderCallbackReceived"]
    assert types[3:] == [
        "PaymentPartiallyRefunded",
        "SubscriptionShortened",
        "SubscriptionRevoked",
        "SubscriptionReinstated",
    ]


def test_a_reinstatement_tells_that_the_payment_succeeded_after_all(
    buyer: User, monthly: Plan
) -> None:
    _tell("paid")
    _tell("dispute_lost")
    _tell("dispute_won", event_id="w")
    review.reinstate(event_of("w"), ANNA, "won")

    assert _told()[-2:] == ["PaymentSucceeded", "SubscriptionReinstated"]


def test_a_duplicate_tells_nobody(buyer: User, monthly: Plan) -> None:
    payload = paid()
    deliver(payload)
    before = list(OutboxMessage.objects.values_list("pk", "seq"))

    deliver(payload)
    deliver({**payload, "amount": "1"})

    assert list(OutboxMessage.objects.values_list("pk", "seq")) == before


def test_what_waited_is_told_in_order_once_it_is_applied(monthly: Plan) -> None:
    """The event runs twice; what it told before is not told again, and leaves no gap."""
    _tell("paid", email="late@example.com", event_id="e")
    assert _told() == ["ProviderCallbackReceived", "PaymentSucceeded"]
    UserFactory.create(email="late@example.com")
    review.reprocess(event_of("e"), ANNA)

    assert _told() == [
        "ProviderCallbackReceived",
        "PaymentSucceeded",
        "PaymentLinked",
        "SubscriptionExtended",
    ]


def test_an_order_that_appears_late_is_told_in_order(buyer: User) -> None:
    _tell("paid", merchant_uid="late", email=None, amount="500")
    link_payments_of_order(OrderFactory.create(user=buyer, merchant_uid="late"))

    assert _told()[-2:] == ["PaymentLinked", "SubscriptionExtended"]


def test_a_rerun_makes_the_same_messages(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ids and keys follow from what they tell, not from when it was told."""
    payload = paid(external_payment_id="p", event_id="e")

    def break_down(*_args: object, **_kwargs: object) -> Any:
        raise RuntimeError

    written: list[Any] = []

    def write_and_note(*messages: Any) -> None:
        written.extend(message.idempotency_key for message in messages)
        write(*messages)

    monkeypatch.setattr("webhooks.process.write", write_and_note)
    with monkeypatch.context() as patch:
        patch.setattr("webhooks.process.finish", break_down)
        deliver(payload)
    assert not OutboxMessage.objects.exists()
    first, written[:] = list(written), []
    deliver(payload)

    # The payment's own id is new, as its row was rolled back; the event and the type are the same.
    assert [key.split(":")[0::2] for key in written] == [key.split(":")[0::2] for key in first]
    rows = OutboxMessage.objects.order_by("seq").values_list("idempotency_key", flat=True)
    assert list(rows) == written


def test_every_message_shows_the_payment_and_no_email(buyer: User, monthly: Plan) -> None:
    _tell("paid", paid_at="2026-01-01T10:00:00Z")
    _tell("refunded")

    payment = Payment.objects.get()
    for message in OutboxMessage.objects.order_by("seq"):
        assert "@" not in repr(message.data)
        shown = message.data["payment"]
        assert shown["payment_id"] == str(payment.pk) == str(message.key)
        assert (shown["provider"], shown["external_payment_id"]) == ("tilda", "p")
        assert (shown["amount"], shown["currency"]) == ("990", "RUB")
        assert shown["user_id"] == str(buyer.pk)
        assert shown["paid_at"] == "2026-01-01T10:00:00+00:00"
    first, last = OutboxMessage.objects.get(seq=1), OutboxMessage.objects.get(seq=7)
    assert first.data["payment"]["status"] == "SUCCEEDED"
    assert first.data["payment"]["applied_at"] is not None
    assert (last.data["payment"]["status"], last.data["payment"]["amount_refunded"]) == (
        "REFUNDED",
        "990",
    )
    assert last.data["payment"]["applied_at"] is None


def test_an_extension_says_which_time(buyer: User, monthly: Plan) -> None:
    _tell("paid")

    subscription = Subscription.objects.get()
    data = OutboxMessage.objects.get(type="SubscriptionExtended").data
    assert data["subscription_id"] == str(subscription.pk)
    assert data["subscription_ends_at"] == subscription.current_period_end.isoformat()
    assert data["period_starts_at"] < data["period_ends_at"] == data["subscription_ends_at"]


def test_expiry_is_told_once_about_the_subscription(buyer: User, monthly: Plan) -> None:
    _tell("paid")
    Subscription.objects.update(current_period_end=Now() - timedelta(hours=1))

    tasks.expire_batch()
    tasks.expire_batch()

    subscription = Subscription.objects.get()
    assert _told(subscription.pk) == ["SubscriptionExpired"]
    data = OutboxMessage.objects.get(type="SubscriptionExpired").data
    assert data == {
        "subscription_id": str(subscription.pk),
        "user_id": str(buyer.pk),
        "ended_at": subscription.current_period_end.isoformat(),
    }


def test_a_cancelled_renewal_is_told(buyer: User, monthly: Plan) -> None:
    _tell("paid")
    review.cancel_renewal(Subscription.objects.get(), ANNA, "asked")

    assert _told(Subscription.objects.get().pk) == ["SubscriptionCanceled"]


def test_every_target_gets_every_message(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("billing.outbox.messages.target_names", lambda: ["crm", "books"])
    _tell("paid")

    deliveries = OutboxDelivery.objects.order_by("target", "seq").values_list("target", "seq")
    assert list(deliveries) == [(name, seq) for name in ("books", "crm") for seq in (1, 2, 3, 4)]
