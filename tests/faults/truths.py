"""What must hold whatever broke."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from django.db.models.functions import Now

from billing.models import Grant, Payment
from subscriptions.models import Subscription, User
from tests.sending import sign, to_bytes
from webhooks import inbox
from webhooks.models import OPEN_STATUSES, WebhookEvent
from webhooks.providers import provider_of
from webhooks.providers.base import Delivery


def assert_applied_once(payload: dict[str, Any]) -> WebhookEvent:
    """One event, one payment, one grant; and all of them say so."""
    event = WebhookEvent.objects.get(external_event_id=payload.get("event_id"))
    payment = Payment.objects.get(external_payment_id=payload["external_payment_id"])
    assert (event.status, payment.status) == ("PROCESSED", "SUCCEEDED")
    assert payment.subscription_applied_at is not None
    assert Grant.objects.get(payment=payment).subscription == payment.subscription
    return event


def assert_periods_adjacent(user: User, *, number: int) -> None:
    """`number` periods, each beginning where the one before ends; the last end is the user's."""
    subscription = Subscription.objects.get(user=user)
    periods = list(Grant.objects.filter(subscription=subscription).order_by("starts_at", "ends_at"))
    assert len(periods) == number
    for earlier, later in pairwise(periods):
        assert later.starts_at == earlier.ends_at
    assert subscription.current_period_end == periods[-1].ends_at
    assert subscription.status == "ACTIVE"


def store_and_lose(payload: dict[str, Any]) -> WebhookEvent:
    """As if the web process had died right after it stored the event; it is due now."""
    body = to_bytes(payload)
    headers = {name.lower(): value for name, value in sign(body).items()}
    provider, delivery = provider_of("tilda"), Delivery(body=body, headers=headers)
    stored = inbox.store(provider, delivery, provider.verify(delivery), provider.parse(delivery))
    make_due()
    return stored.event


def make_due() -> int:
    """As if enough time had passed for everything that is unfinished."""
    return WebhookEvent.objects.filter(status__in=OPEN_STATUSES).update(next_attempt_at=Now())
