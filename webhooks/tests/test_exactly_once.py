"""The last two guards of exactly-once, with the first one, the payment's lock, out of the way."""

from __future__ import annotations

from typing import Any

import pytest
from django.utils import timezone

from billing.models import Grant, Payment
from billing.purchases import subscription_time
from subscriptions.extending import extend
from subscriptions.models import Plan, Subscription, User
from tests.sending import deliver, paid, result
from webhooks.models import WebhookEvent

pytestmark = pytest.mark.django_db


def _somebody_was_faster(monkeypatch: pytest.MonkeyPatch, act: Any) -> None:
    """Between our look at the payment and our grant."""

    def extend_late(**arguments: Any) -> Any:
        extension = extend(**arguments)
        act(Payment.objects.get(), extension, arguments["plan"])
        return extension

    monkeypatch.setattr(subscription_time, "extend", extend_late)


def _marked(payment: Payment, extension: Any, _plan: Plan) -> None:
    Payment.objects.update(
        subscription_applied_at=timezone.now(),
        user=User.objects.get(),
        subscription=extension.subscription_id,
    )


def _granted(payment: Payment, extension: Any, plan: Plan) -> None:
    Grant.objects.create(
        payment=payment,
        plan=plan,
        subscription_id=extension.subscription_id,
        starts_at=extension.starts_at,
        ends_at=extension.ends_at,
    )


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (_marked, "AlreadyApplied"),
        (_granted, "IntegrityError 23505 billing_grant_payment_id_key"),
    ],
)
def test_a_second_application_is_refused_and_leaves_nothing(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch, act: Any, error: str
) -> None:
    _somebody_was_faster(monkeypatch, act)

    assert result(deliver(paid())) == (200, "failed_retryable")

    event = WebhookEvent.objects.get()
    assert (event.error_code, event.error_message) == ("PROCESSING_ERROR", error)
    # Rolled back with everything else, the time it would have given included.
    assert not Payment.objects.exists()
    assert not Grant.objects.exists()
    assert not Subscription.objects.exists()
