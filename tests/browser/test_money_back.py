"""What support staff decide when money goes back, in a real browser."""

from __future__ import annotations

import pytest
from pytest_django import Settings

from billing.models import Grant, OutboxDelivery
from billing.outbox.targets import Kind, Target
from subscriptions.models import Plan, Subscription, User
from tests.browser.conftest import Page
from tests.sending import deliver, paid


@pytest.fixture
def refunded_in_part(buyer: User, monthly: Plan) -> Grant:
    deliver(paid(event_id="e", external_payment_id="p"))
    part = {"status": "partially_refunded", "refund_id": "a", "amount": "330"}
    deliver(paid(event_id="part", external_payment_id="p", **part))
    return Grant.objects.get()


def test_a_part_is_taken_and_given_back_when_its_refund_fails(
    office: Page, refunded_in_part: Grant
) -> None:
    end = Subscription.objects.get().current_period_end

    office.open("/admin/webhooks/reviewitem/")
    office.press("tilda:part")
    # Only what fits is offered.
    assert "Revoke what was given" in office.text
    assert "Reinstate what was taken back" not in office.text
    office.press("Shorten in proportion to the refund")
    office.type("reason", "a third")
    office.press("Shorten in proportion to the refund")
    assert ": shortened, the subscription ends" in office.text
    assert Subscription.objects.get().current_period_end < end

    deliver(paid(event_id="failed", external_payment_id="p", status="refund_failed", refund_id="a"))
    office.open("/admin/webhooks/reviewitem/")
    office.press("tilda:failed")
    office.press("Reinstate what was taken back")
    office.type("reason", "it bounced")
    office.press("Reinstate what was taken back")
    assert ": reinstated, the subscription ends" in office.text
    assert Subscription.objects.get().current_period_end == end


def test_what_was_refunded_in_part_is_revoked(office: Page, refunded_in_part: Grant) -> None:
    office.open("/admin/webhooks/reviewitem/")
    office.choose_action("Revoke what was given")
    office.type("reason", "they asked for it")
    office.press("Revoke what was given")

    assert ": taken back" in office.text
    assert Subscription.objects.get().status == "INACTIVE"


def test_a_dead_letter_is_resent(
    office: Page, buyer: User, monthly: Plan, settings: Settings
) -> None:
    settings.OUTBOX_TARGETS = (Target(name="crm", kind=Kind.HTTP),)
    deliver(paid())
    letter = OutboxDelivery.objects.filter(target="crm", seq=1)
    letter.update(status="DEAD", next_attempt_at=None, attempts=10, last_error="refused: 422")

    office.open("/admin/")
    office.press("Outbox deliveries")
    assert "refused: 422" in office.text
    office.choose_action("Resend")
    office.type("reason", "they mended it")
    office.press("Resend")

    assert letter.get().status == "PENDING"
