"""Parts of one payment that are refunded at the same moment."""

from __future__ import annotations

from decimal import Decimal

import pytest

from billing.models import Grant, Payment, Refund
from subscriptions.models import Plan, User
from tests.faults.threads import at_once
from tests.sending import deliver, paid
from webhooks.models import WebhookEvent

pytestmark = pytest.mark.django_db(transaction=True)
PARTS = 8


def test_parts_that_add_up_at_once_are_one_full_refund_and_leave_nobody_to_ask(
    buyer: User, monthly: Plan
) -> None:
    """Whoever finishes before the last part goes to review; the last part must find it there."""
    payment = paid(external_payment_id="p")
    deliver(payment)
    part = f"{Decimal(990) / PARTS:f}"
    parts = [
        {**payment, "event_id": f"r{n}", "refund_id": f"r{n}", "amount": part}
        | {"status": "partially_refunded"}
        for n in range(PARTS)
    ]

    answers = at_once(*(lambda told=told: deliver(told) for told in parts))

    assert {answer.status_code for answer in answers} == {200}
    payment_now = Payment.objects.get()
    assert (payment_now.status, int(payment_now.amount_refunded)) == ("REFUNDED", 990)
    assert (Refund.objects.count(), Grant.objects.filter(revoked_at=None).count()) == (PARTS, 0)
    assert not WebhookEvent.objects.filter(review="OPEN").exists()
