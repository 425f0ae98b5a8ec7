"""What support staff do all day, in a real browser."""

from __future__ import annotations

from billing.models import Grant, Payment
from subscriptions.models import Plan, Subscription, User
from tests.browser.conftest import Page
from tests.factories import UserFactory
from tests.sending import deliver, paid
from webhooks.models import WebhookEvent


def test_an_unlinked_payment_is_found_linked_and_applied(office: Page, monthly: Plan) -> None:
    deliver(paid(external_payment_id="pay-lost", email=None))
    UserFactory.create(email="customer@example.com")

    office.open("/admin/")
    office.press("Payments")
    office.press("Unlinked")
    assert "pay-lost" in office.text
    office.choose_action("Link to user")
    office.type("email", "customer@example.com")
    office.type("reason", "they called")
    office.press("Link to user")

    assert "applied, the subscription ends" in office.text
    assert Payment.objects.get().user == User.objects.get(email="customer@example.com")
    assert Grant.objects.count() == 1


def test_a_mismatch_is_applied_anyway_from_its_own_page(
    office: Page, buyer: User, monthly: Plan
) -> None:
    deliver(paid(event_id="evt-cheap", amount="1.00"))

    office.open("/admin/")
    office.press("Review queue")
    assert "paid 1 RUB, plan monthly cost 990" in office.text
    office.press("tilda:evt-cheap")
    assert '"amount": "1.00"' in office.text
    office.press("Apply anyway")
    office.type("reason", "a discount code")
    office.press("Apply anyway")

    assert "applied, the subscription ends" in office.text
    assert Subscription.objects.get(user=buyer).status == "ACTIVE"
    assert WebhookEvent.objects.get().review == "RESOLVED"


def test_a_mismatch_is_dismissed_for_good(office: Page, buyer: User, monthly: Plan) -> None:
    deliver(paid(amount="1.00"))

    office.open("/admin/webhooks/reviewitem/")
    office.choose_action("Dismiss")
    office.type("reason", "refunded at the provider")
    office.press("Dismiss")

    assert ": done" in office.text
    assert "0 review queue" in office.text
    assert WebhookEvent.objects.get().review == "DISMISSED"
    assert Grant.objects.count() == 0


def test_a_new_user_gets_what_was_paid_under_the_address(office: Page, monthly: Plan) -> None:
    deliver(paid(email="early@example.com"))

    office.open("/admin/subscriptions/user/add/")
    office.type("email", "early@example.com")
    office.type("password1", "a long enough password")
    office.type("password2", "a long enough password")
    office.press("Save")

    assert Subscription.objects.get().user.email == "early@example.com"
    office.open("/admin/subscriptions/subscription/")
    assert "early@example.com" in office.text
    assert "ACTIVE" in office.text or "Active" in office.text
