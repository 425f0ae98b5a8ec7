"""The six edge cases of the first specification, and what surrounds them."""

from datetime import timedelta

import pytest
from django.utils import timezone

from billing.models import Grant, Payment
from subscriptions.models import Plan, Subscription, User
from tests.sending import deliver, paid
from webhooks.models import WebhookEvent

pytestmark = pytest.mark.django_db


def test_it_extends_the_subscription_of_whoever_paid(buyer: User, monthly: Plan) -> None:
    answer = deliver(paid())

    assert (answer.status_code, answer.json()["status"]) == (200, "processed")
    subscription = Subscription.objects.get(user=buyer)
    assert subscription.status == "ACTIVE"
    assert timedelta(days=28) <= subscription.current_period_end - timezone.now() <= timedelta(31)
    payment = Payment.objects.get()
    assert (payment.status, payment.user) == ("SUCCEEDED", buyer)
    assert payment.subscription_applied_at is not None
    assert Grant.objects.get().payment == payment
    event = WebhookEvent.objects.get()
    assert (event.status, event.attempts, event.next_attempt_at) == ("PROCESSED", 1, None)
