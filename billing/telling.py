"""From what happened to a payment to the messages that tell of it."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from billing.models import Payment, PaymentStatus, Purchase
from billing.money import plain
from billing.outbox.messages import Message, MessageType
from billing.outbox.snapshots import payment_snapshot
from billing.purchases.base import Act, Effect
from billing.settlements import Settlement
from subscriptions.expiry import Expired
from subscriptions.models import Subscription

_BY_STATUS = {
    PaymentStatus.PROCESSING: MessageType.PAYMENT_PROCESSING,
    PaymentStatus.SUCCEEDED: MessageType.PAYMENT_SUCCEEDED,
    PaymentStatus.FAILED: MessageType.PAYMENT_FAILED,
    PaymentStatus.CANCELED: MessageType.PAYMENT_CANCELED,
    PaymentStatus.REFUNDED: MessageType.PAYMENT_REFUNDED,
}
_BY_EFFECT = {
    (Purchase.SUBSCRIPTION, Act.GAVE): MessageType.SUBSCRIPTION_EXTENDED,
    (Purchase.SUBSCRIPTION, Act.TOOK_BACK): MessageType.SUBSCRIPTION_REVOKED,
    (Purchase.SUBSCRIPTION, Act.SHORTENED): MessageType.SUBSCRIPTION_SHORTENED,
    (Purchase.SUBSCRIPTION, Act.REINSTATED): MessageType.SUBSCRIPTION_REINSTATED,
    (Purchase.BOOKING, Act.GAVE): MessageType.BOOKING_CONFIRMED,
    (Purchase.BOOKING, Act.TOOK_BACK): MessageType.BOOKING_CANCELED,
    (Purchase.BOOKING, Act.REINSTATED): MessageType.BOOKING_CONFIRMED,
    (Purchase.WALLET_TOPUP, Act.GAVE): MessageType.WALLET_CREDITED,
    (Purchase.WALLET_TOPUP, Act.TOOK_BACK): MessageType.WALLET_DEBITED,
    (Purchase.WALLET_TOPUP, Act.SHORTENED): MessageType.WALLET_DEBITED,
    (Purchase.WALLET_TOPUP, Act.REINSTATED): MessageType.WALLET_CREDITED,
    (Purchase.WALLET_SPENDING, Act.GAVE): MessageType.RESERVATION_COMMITTED,
    (Purchase.WALLET_SPENDING, Act.TOOK_BACK): MessageType.WALLET_CREDITED,
    (Purchase.WALLET_SPENDING, Act.REINSTATED): MessageType.WALLET_DEBITED,
}


def messages_of(settlement: Settlement, *, event_id: UUID, event_type: str | None) -> list[Message]:
    """In the order in which it happened, each with the payment as it stands at the end of it.

    Whatever changes a payment leaves a fact, so that event and number of facts together are a
    cause that happens once.
    """
    recorded = settlement.recorded
    payment = recorded.payment
    cause = f"{event_id}:{recorded.folded.facts_heard}"
    data = {"payment": payment_snapshot(payment)}

    def message(kind: MessageType, cause: object = cause, **more: Any) -> Message:
        return Message(kind, payment.pk, cause, data | more)

    told = [
        message(
            MessageType.PROVIDER_CALLBACK_RECEIVED,
            event_id,
            event_id=str(event_id),
            event_type=event_type,
        )
    ]
    status = PaymentStatus(payment.status)
    if status in _BY_STATUS and status != recorded.status_before:
        told.append(message(_BY_STATUS[status]))
    elif payment.amount_refunded > recorded.refunded_before:
        told.append(message(MessageType.PAYMENT_PARTIALLY_REFUNDED))
    if settlement.linked_now:
        told.append(message(MessageType.PAYMENT_LINKED))
    if effect := settlement.effect:
        told.append(message(_BY_EFFECT[effect.kind, effect.act], **_effect_data(effect)))
    if settlement.released:
        told.append(message(MessageType.RESERVATION_RELEASED))
    return told


def reservation_released(payment: Payment, *, cause: UUID) -> Message:
    data = {"payment": payment_snapshot(payment)}
    return Message(MessageType.RESERVATION_RELEASED, payment.pk, cause, data)


def subscription_expired(expired: Expired) -> Message:
    ended_at = expired.ended_at.isoformat()
    data = {
        "subscription_id": str(expired.subscription_id),
        "user_id": str(expired.user_id),
        "ended_at": ended_at,
    }
    return Message(MessageType.SUBSCRIPTION_EXPIRED, expired.subscription_id, ended_at, data)


def subscription_canceled(subscription: Subscription, *, cause: UUID) -> Message:
    data = {
        "subscription_id": str(subscription.pk),
        "user_id": str(subscription.user_id),
        "ends_at": subscription.current_period_end.isoformat(),
    }
    return Message(MessageType.SUBSCRIPTION_CANCELED, subscription.pk, cause, data)


def _effect_data(effect: Effect) -> dict[str, str | None]:
    values = {
        "subscription_id": effect.subscription_id,
        "period_starts_at": effect.starts_at,
        "period_ends_at": effect.ends_at,
        "subscription_ends_at": effect.end_after,
        "booking_id": effect.booking_id,
        "wallet_id": effect.wallet_id,
        "amount": plain(effect.amount) if effect.amount is not None else None,
    }
    return {
        name: value.isoformat() if isinstance(value, datetime) else str(value)
        for name, value in values.items()
        if value is not None
    }
