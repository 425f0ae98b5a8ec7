"""A database in which a bit of everything has happened, all of it through the doors."""

from __future__ import annotations

from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4

from billing.initiating import Initiation, initiate, record_refused
from billing.models import EntryKind, Order, OutboxDelivery, Payment, Wallet
from billing.outbox.dispatching import dispatch
from billing.outbox.sinks.views import ViewSink
from billing.outbox.targets import Kind, Target
from billing.wallets import commit, credit, open_wallet, release, reserve
from subscriptions.models import Subscription, User
from tests.factories import BookingFactory, OrderFactory, TopupFactory, UserFactory
from tests.people import ANNA
from tests.sending import deliver, paid, send
from webhooks import dead_letters, review
from webhooks.models import WebhookEvent


def make_busy(buyer: User) -> None:
    """Needs the plan `monthly`."""
    _subscriptions(buyer)
    _waiting_and_deciding()
    _orders(buyer)
    _payments_from_here(buyer)
    dispatch_to_the_read_model()
    _skip_a_dead_letter()
    # These are on their way.
    deliver(paid(external_payment_id="on-its-way"))


def dispatch_to_the_read_model() -> None:
    dispatch(Target(name="read-model", kind=Kind.READ_MODEL), ViewSink())


def payment(external_id: str) -> Payment:
    return Payment.objects.get(external_payment_id=external_id)


def event(event_id: str) -> WebhookEvent:
    return WebhookEvent.objects.get(external_event_id=event_id, conflict_of__isnull=True)


def tell(external_id: str, status: str, **fields: Any) -> None:
    deliver(paid(external_payment_id=external_id, status=status, **fields))


def _subscriptions(buyer: User) -> None:
    for name in ("kept", "refunded", "shortened", "revoked", "returned", "kept-in-part", "behind"):
        tell(name, "paid")
    tell("refunded", "refunded", refund_id="r-1", amount_refunded="990")
    tell("shortened", "partially_refunded", refund_id="r-2", amount="90", event_id="s")
    review.shorten(event("s"), ANNA, "as much as was refunded")
    tell("revoked", "disputed", event_id="d")
    review.revoke(event("d"), ANNA, "fraud")
    tell("returned", "refunded", refund_id="r-3", amount_refunded="990")
    tell("kept-in-part", "partially_refunded", refund_id="r-4", amount="10", event_id="k")
    review.keep(event("k"), ANNA, "a discount")
    # Refunded before it was paid, failed and then paid, canceled.
    tell("backwards", "refunded")
    tell("backwards", "paid")
    tell("second-try", "failed", amount=None)
    tell("second-try", "paid")
    tell("canceled", "canceled", amount=None, currency=None)
    review.cancel_renewal(Subscription.objects.get(user=buyer), ANNA, "asked for it")


def _waiting_and_deciding() -> None:
    tell("parked", "paid", email="nobody@example.com")
    tell("unlinked", "paid", email=None)
    tell("linked-later", "paid", email="later@example.com")
    UserFactory.create(email="later@example.com")
    review.reprocess(event_of("linked-later"), ANNA, "is there now")
    tell("too-little", "paid", amount="1")
    tell("dismissed", "paid", amount="2", event_id="no")
    review.dismiss(event("no"), ANNA, "not ours")
    tell("overruled", "paid", amount="3", event_id="yes")
    review.apply_anyway(event("yes"), ANNA, "a voucher")
    tell("test-payment", "paid", test=True)
    deliver({"event_id": "ping", "event_type": "ping"})
    send(b'{"external_payment_id": "forged", "status": "paid"}', {"X-Webhook-Signature": "0"})
    tell("conflicting", "paid", event_id="twice")
    tell("conflicting", "paid", event_id="twice", amount="1")


def event_of(external_id: str) -> WebhookEvent:
    found = WebhookEvent.objects.filter(external_payment_id=external_id).first()
    assert found is not None
    return found


def _orders(buyer: User) -> None:
    for name, order in _made_orders(buyer).items():
        pays = {"merchant_uid": order.merchant_uid, "email": None, "amount": "500"}
        tell(name, "paid", **pays)
        if name.endswith("refunded"):
            tell(name, "refunded", email=None, amount_refunded="500")
    tell("order-again", "paid", merchant_uid=payment("order").merchant_uid, amount="500")
    tell("topup-in-part", "partially_refunded", refund_id="r-5", amount="100", event_id="t")
    review.shorten(event("t"), ANNA, "a discount")
    OrderFactory.create(user=buyer)
    BookingFactory.create(order__user=buyer)


def _made_orders(buyer: User) -> dict[str, Order]:
    wallet = open_wallet(user_id=buyer.pk, currency="RUB")
    return {
        "order": OrderFactory.create(user=buyer),
        "order-refunded": OrderFactory.create(user=buyer),
        "booking": BookingFactory.create(order__user=buyer).order,
        "booking-refunded": BookingFactory.create(order__user=buyer).order,
        "topup": TopupFactory.create(user=buyer, wallet=wallet),
        "topup-refunded": TopupFactory.create(user=buyer, wallet=wallet),
        "topup-in-part": TopupFactory.create(user=buyer, wallet=wallet),
    }


def _payments_from_here(buyer: User) -> None:
    wallet = Wallet.objects.get(user=buyer)
    credit(wallet_id=wallet.pk, amount=Decimal(1000), kind=EntryKind.MANUAL, payment_id=None)
    for status in ("paid", "failed", "pending", "refunded"):
        started = _initiate(buyer, wallet.pk)
        if status == "refunded":
            tell(str(started.pk), "paid", amount="100", email=None)
        tell(str(started.pk), status, amount="100", email=None)
    record_refused(_initiation(buyer, wallet.pk), "too little money")
    for finish in (commit, release):
        held = reserve(payment_id=uuid4(), wallet_id=wallet.pk, amount=Decimal(10))
        finish(held.payment_id)


def _initiate(buyer: User, wallet_id: UUID) -> Payment:
    return initiate(_initiation(buyer, wallet_id))[0]


def _initiation(buyer: User, wallet_id: UUID) -> Initiation:
    return Initiation(
        payment_id=uuid4(),
        user_id=buyer.pk,
        amount=Decimal(100),
        currency="RUB",
        provider="tilda",
        wallet_id=wallet_id,
    )


def _skip_a_dead_letter() -> None:
    tell("nobody-hears-of-it", "pending", email=None)
    dead = OutboxDelivery.objects.filter(status="PENDING").order_by("-seq").first()
    assert dead is not None
    OutboxDelivery.objects.filter(pk=dead.pk).update(status="DEAD", next_attempt_at=None)
    dead_letters.skip(dead, ANNA, "it need not know")
