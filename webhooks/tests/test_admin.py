"""The back office, through real requests with CSRF checks on."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from billing.models import Grant, Payment
from subscriptions.models import Plan, Subscription, User
from tests.factories import StaffFactory, UserFactory
from tests.sending import deliver, paid
from webhooks.models import AuditEntry, WebhookEvent

pytestmark = pytest.mark.django_db

SEE_ONLY = ("webhooks_webhookevent", "webhooks_auditentry", "billing_grant", "billing_payment")


class Staff:
    """A member of staff at a browser: every POST carries the token of a page seen before."""

    def __init__(self, user: User) -> None:
        self.user = user
        self.client = Client(enforce_csrf_checks=True)
        self.client.force_login(user)

    def get(self, name: str, *args: Any, **query: Any) -> Any:
        return self.client.get(reverse(f"admin:{name}", args=args), query, secure=True)

    def post(self, name: str, *args: Any, **fields: Any) -> Any:
        page = self.get("index").content.decode()
        match = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', page)
        assert match
        url = reverse(f"admin:{name}", args=args)
        data = {"csrfmiddlewaretoken": match[1], **fields}
        headers = {"Referer": "https://testserver/admin/"}
        return self.client.post(url, data, secure=True, headers=headers, follow=True)

    def act(self, model: str, action: str, *rows: Any, **form: Any) -> Any:
        selected = [str(row.pk) for row in rows]
        fields = {"action": action, "_selected_action": selected, "decided": "1", **form}
        return self.post(f"{model}_changelist", **fields)


@pytest.fixture
def staff(db: None) -> Staff:
    return Staff(StaffFactory.create(email="staff@example.com"))


def _messages(page: Any) -> str:
    return " ".join(str(message) for message in page.context["messages"])


def test_linking_a_payment_to_a_user_applies_it_and_says_who_did(
    staff: Staff, monthly: Plan
) -> None:
    deliver(paid(email=None))
    user = UserFactory.create(email="found@example.com")

    page = staff.act(
        "billing_payment",
        "link_to_user",
        Payment.objects.get(),
        email="FOUND@example.com",
        reason="called support",
    )

    assert "applied" in _messages(page)
    assert Payment.objects.get().user == user
    assert Grant.objects.filter(subscription__user=user).count() == 1
    assert WebhookEvent.objects.get().status == "PROCESSED"
    entries = AuditEntry.objects.filter(actor=f"staff:{staff.user.pk}", reason="called support")
    assert set(entries.values_list("action", flat=True)) == {
        "payment_linked",
        "payment_applied",
        "processing_succeeded",
    }


def test_linking_twice_has_one_effect(staff: Staff, monthly: Plan) -> None:
    deliver(paid(email=None))
    first, second = UserFactory.create(), UserFactory.create()
    payment = Payment.objects.get()
    staff.act("billing_payment", "link_to_user", payment, email=first.email, reason="one")

    page = staff.act("billing_payment", "link_to_user", payment, email=second.email, reason="two")

    assert "linked already" in _messages(page)
    assert Payment.objects.get().user == first
    assert Grant.objects.count() == 1


def test_linking_asks_for_a_user_that_exists(staff: Staff, monthly: Plan) -> None:
    deliver(paid(email=None))

    page = staff.act(
        "billing_payment",
        "link_to_user",
        Payment.objects.get(),
        email="nobody@example.com",
        reason="typo",
    )

    assert "No user has this e-mail." in page.content.decode()
    assert Payment.objects.get().user is None


def test_a_mismatch_can_be_applied_anyway_with_a_reason(
    staff: Staff, buyer: User, monthly: Plan
) -> None:
    deliver(paid(amount="1.00"))
    event = WebhookEvent.objects.get()

    refused = staff.act("webhooks_reviewitem", "apply_anyway", event, reason="")
    assert "This field is required." in refused.content.decode()
    assert Grant.objects.count() == 0

    page = staff.act("webhooks_reviewitem", "apply_anyway", event, reason="a discount")

    assert "applied" in _messages(page)
    assert Subscription.objects.get(user=buyer).status == "ACTIVE"
    event.refresh_from_db()
    assert (event.status, event.review, event.error_code) == ("PROCESSED", "RESOLVED", None)
    entry = AuditEntry.objects.get(action="review_overruled")
    assert (entry.actor, entry.reason) == (f"staff:{staff.user.pk}", "a discount")

    again = staff.act("webhooks_webhookevent", "apply_anyway", event, reason="twice")
    assert "Only what is open" in _messages(again)
    assert Grant.objects.count() == 1


def test_an_unknown_plan_can_be_applied_by_choosing_one(
    staff: Staff, buyer: User, monthly: Plan
) -> None:
    deliver(paid(plan_id="no-such-plan"))
    event = WebhookEvent.objects.get()
    assert event.error_code == "PLAN_UNKNOWN"

    staff.act("webhooks_reviewitem", "apply_anyway", event, reason="renamed", plan=monthly.pk)

    assert Grant.objects.get().plan == monthly


def test_a_dismissed_event_stays_dismissed(staff: Staff, buyer: User, monthly: Plan) -> None:
    payload = paid(amount="1.00")
    deliver(payload)
    event = WebhookEvent.objects.get()

    staff.act("webhooks_reviewitem", "dismiss", event, reason="fraud")
    deliver(payload)
    page = staff.act("webhooks_webhookevent", "reprocess", event)

    assert "nothing to do" in _messages(page)
    event.refresh_from_db()
    assert (event.status, event.review) == ("FAILED_FINAL", "DISMISSED")
    assert Grant.objects.count() == 0
    assert AuditEntry.objects.get(action="review_dismissed").reason == "fraud"


def test_reprocessing_an_applied_event_has_no_second_effect_but_an_audit_row(
    staff: Staff, buyer: User, monthly: Plan
) -> None:
    deliver(paid())
    end = Subscription.objects.get().current_period_end

    staff.act("webhooks_webhookevent", "reprocess", WebhookEvent.objects.get(), reason="unsure")

    assert Subscription.objects.get().current_period_end == end
    assert Grant.objects.count() == 1
    entry = AuditEntry.objects.get(action="event_reprocessed")
    assert (entry.actor, entry.reason) == (f"staff:{staff.user.pk}", "unsure")


def test_actions_need_a_csrf_token(staff: Staff, buyer: User, monthly: Plan) -> None:
    deliver(paid(amount="1.00"))
    url = reverse("admin:webhooks_webhookevent_changelist")
    data = {
        "action": "apply_anyway",
        "_selected_action": [str(WebhookEvent.objects.get().pk)],
        "decided": "1",
        "reason": "forged",
    }

    answer = staff.client.post(url, data, secure=True)

    assert answer.status_code == 403
    assert Grant.objects.count() == 0


def test_actions_need_their_permission(buyer: User, monthly: Plan) -> None:
    deliver(paid(amount="1.00"))
    clerk = StaffFactory.create(is_superuser=False)
    for name in ("view_webhookevent", "view_reviewitem"):
        clerk.user_permissions.add(_permission(name))

    page = Staff(clerk).act(
        "webhooks_webhookevent", "apply_anyway", WebhookEvent.objects.get(), reason="mine"
    )

    assert page.status_code == 200
    assert Grant.objects.count() == 0


@pytest.mark.parametrize("model", SEE_ONLY)
def test_what_the_product_wrote_cannot_be_edited_or_deleted(
    staff: Staff, buyer: User, monthly: Plan, model: str
) -> None:
    deliver(paid())
    app, name = model.split("_")
    from django.apps import apps

    row = apps.get_model(app, name).objects.first()
    assert row is not None

    assert staff.post(f"{model}_add").status_code == 403
    assert staff.post(f"{model}_delete", row.pk, post="yes").status_code == 403
    assert staff.post(f"{model}_change", row.pk, status="IGNORED").status_code == 403
    assert apps.get_model(app, name).objects.filter(pk=row.pk).exists()


def test_every_list_and_page_can_be_looked_at(staff: Staff, buyer: User, monthly: Plan) -> None:
    deliver(paid())
    deliver(paid(amount="1.00"))
    rows = {
        "webhooks_webhookevent": WebhookEvent.objects.first(),
        "webhooks_reviewitem": WebhookEvent.objects.get(review="OPEN"),
        "webhooks_auditentry": AuditEntry.objects.first(),
        "billing_payment": Payment.objects.first(),
        "billing_grant": Grant.objects.first(),
        "subscriptions_subscription": Subscription.objects.first(),
        "subscriptions_user": buyer,
        "subscriptions_plan": monthly,
    }
    for model, row in rows.items():
        assert row is not None
        assert staff.get(f"{model}_changelist").status_code == 200, model
        assert staff.get(f"{model}_change", row.pk).status_code == 200, model
    assert staff.get("billing_payment_changelist", link="unlinked").status_code == 200


def test_a_payload_is_readable_and_escaped(staff: Staff, buyer: User, monthly: Plan) -> None:
    deliver(paid(note="<script>alert(1)</script>"))

    page = staff.get("webhooks_webhookevent_change", WebhookEvent.objects.get().pk)

    text = page.content.decode()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<script>alert(1)" not in text


def test_canceling_keeps_the_end_and_a_new_payment_makes_it_active(
    staff: Staff, buyer: User, monthly: Plan
) -> None:
    deliver(paid())
    subscription = Subscription.objects.get()
    end = subscription.current_period_end

    staff.act("subscriptions_subscription", "cancel_renewal", subscription, reason="asked")

    subscription.refresh_from_db()
    assert (subscription.status, subscription.current_period_end) == ("CANCELED", end)
    deliver(paid())
    subscription.refresh_from_db()
    assert subscription.status == "ACTIVE"


def _permission(codename: str) -> Any:
    from django.contrib.auth.models import Permission

    return Permission.objects.get(codename=codename)
