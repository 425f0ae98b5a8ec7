"""The six edge cases of the first specification, and what surrounds them."""

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.utils import timezone
from pytest_django import Settings

from billing.models import Grant, Payment
from subscriptions.models import Plan, PlanPrice, Subscription, User
from tests.factories import PlanFactory, PlanPriceFactory, SubscriptionFactory, UserFactory
from tests.sending import deliver, paid, result
from webhooks.models import AuditEntry, WebhookEvent

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


def test_it_keeps_what_came_and_how_it_proved_itself(buyer: User, monthly: Plan) -> None:
    payload = paid(event_type="payment.paid", merchant_uid="order-7")
    deliver(payload)

    event = WebhookEvent.objects.get()
    assert event.payload == payload
    assert event.provider == "tilda"
    assert event.external_event_id == payload["event_id"]
    assert event.external_payment_id == payload["external_payment_id"]
    assert (event.event_type, event.merchant_uid) == ("payment.paid", "order-7")
    assert (event.signature_valid, event.signature_method) == (True, "hmac-sha256")
    assert event.processed_at is not None


@pytest.mark.django_db(transaction=True)
def test_it_writes_who_applied_a_payment_into_the_audit(buyer: User, monthly: Plan) -> None:
    deliver(paid())

    entry = AuditEntry.objects.get(action="payment_applied")
    payment = Payment.objects.get()
    assert (entry.actor, entry.payment_id, entry.user_id) == ("intake", payment.pk, buyer.pk)
    assert entry.subscription_id == payment.subscription_id
    assert entry.event_id == WebhookEvent.objects.get().pk
    # A row's xmin is the transaction that wrote it: the entry came with its change.
    rows = Payment.objects.raw("SELECT id, xmin::text::bigint AS written_by FROM billing_payment")
    assert entry.txid & 0xFFFFFFFF == rows[0].written_by  # type: ignore[attr-defined]


@pytest.mark.parametrize("word", ["paid", "succeeded", "PAID", " Succeeded "])
def test_it_knows_the_words_for_success(buyer: User, monthly: Plan, word: str) -> None:
    assert result(deliver(paid(status=word))) == (200, "processed")


def test_it_adds_to_time_that_is_already_paid_for(buyer: User, monthly: Plan) -> None:
    end = datetime(2099, 1, 31, 12, tzinfo=UTC)
    SubscriptionFactory.create(user=buyer, status="ACTIVE", current_period_end=end)

    deliver(paid())

    subscription = Subscription.objects.get()
    assert subscription.current_period_end == datetime(2099, 2, 28, 12, tzinfo=UTC)
    grant = Grant.objects.get()
    assert (grant.starts_at, grant.ends_at) == (end, subscription.current_period_end)


def test_it_starts_from_now_when_the_time_has_run_out(buyer: User, monthly: Plan) -> None:
    long_ago = timezone.now() - timedelta(days=400)
    SubscriptionFactory.create(user=buyer, status="INACTIVE", current_period_end=long_ago)

    deliver(paid())

    assert Subscription.objects.get().current_period_end > timezone.now() + timedelta(days=27)


def test_a_payment_makes_a_canceled_subscription_active(buyer: User, monthly: Plan) -> None:
    SubscriptionFactory.create(user=buyer, status="CANCELED")

    deliver(paid())

    assert Subscription.objects.get().status == "ACTIVE"


def test_it_gives_the_plan_that_was_named(buyer: User, monthly: Plan) -> None:
    yearly = PlanFactory.create(code="yearly", period_unit="YEAR")
    PlanPriceFactory.create(plan=yearly, amount="9900")

    assert result(deliver(paid(plan_id="yearly", amount="9900"))) == (200, "processed")

    assert Grant.objects.get().plan == yearly
    assert Subscription.objects.get().current_period_end > timezone.now() + timedelta(days=360)


def test_it_finds_the_user_whatever_the_case_of_the_address(buyer: User, monthly: Plan) -> None:
    assert result(deliver(paid(email=" Buyer@Example.COM "))) == (200, "processed")


def test_it_parks_a_payment_whose_user_is_unknown(monthly: Plan) -> None:
    assert result(deliver(paid(email="nobody@example.com"))) == (200, "unlinked")

    event, payment = WebhookEvent.objects.get(), Payment.objects.get()
    assert (event.status, event.error_code) == ("FAILED_RETRYABLE", "USER_MISSING")
    assert event.next_attempt_at is not None
    assert event.review is None
    assert (payment.status, payment.user, payment.email) == (
        "SUCCEEDED",
        None,
        "nobody@example.com",
    )
    assert payment.subscription_applied_at is None
    assert not Subscription.objects.exists()


@pytest.mark.parametrize("email", [None, "", "not an address", 42, "x" * 250 + "@example.com"])
def test_it_parks_a_payment_without_an_email(buyer: User, monthly: Plan, email: Any) -> None:
    assert result(deliver(paid(email=email))) == (200, "unlinked")

    event, payment = WebhookEvent.objects.get(), Payment.objects.get()
    assert (event.status, event.error_code) == ("FAILED_RETRYABLE", "UNLINKED_PAYMENT")
    assert (payment.status, payment.user, payment.email) == ("SUCCEEDED", None, None)
    assert not Subscription.objects.exists()


@pytest.mark.parametrize(
    "fields",
    [
        {"amount": "989.98"},
        {"amount": "990.02"},
        {"amount": "1"},
        {"currency": "USD"},
        {"currency": "KRW", "amount": "990"},
        {"amount": None},
        {"currency": None},
        {"amount": None, "currency": None},
    ],
)
def test_another_amount_than_the_plans_goes_to_review(
    buyer: User, monthly: Plan, fields: dict[str, Any]
) -> None:
    """Threat 23."""
    assert result(deliver(paid(**fields))) == (200, "failed_final")

    event, payment = WebhookEvent.objects.get(), Payment.objects.get()
    assert (event.status, event.error_code) == ("FAILED_FINAL", "AMOUNT_MISMATCH")
    assert (event.review, event.next_attempt_at) == ("OPEN", None)
    assert (payment.status, payment.user) == ("SUCCEEDED", buyer)
    assert payment.subscription_applied_at is None
    assert not Grant.objects.exists()


@pytest.mark.parametrize("amount", ["989.99", "990.01", "990", 990, 990.0])
def test_a_hundredth_more_or_less_is_the_plans_amount(
    buyer: User, monthly: Plan, amount: Any
) -> None:
    assert result(deliver(paid(amount=amount))) == (200, "processed")


@pytest.mark.parametrize("amount", ["15899", "15901"])
def test_a_currency_without_decimals_has_no_tolerance(
    buyer: User, monthly: Plan, amount: str
) -> None:
    PlanPriceFactory.create(plan=monthly, amount="15900", currency="KRW")

    answer = deliver(paid(amount=amount, currency="KRW"))
    assert result(answer) == (200, "failed_final")
    answer = deliver(paid(amount="15900", currency="krw"))
    assert result(answer) == (200, "processed")


def test_the_price_of_the_day_it_was_paid_counts(buyer: User, monthly: Plan) -> None:
    yesterday, week_ago = (timezone.now() - timedelta(days=days) for days in (1, 7))
    PlanPrice.objects.update(valid_to=yesterday)
    PlanPriceFactory.create(plan=monthly, amount="1200", valid_from=yesterday)

    assert result(deliver(paid(paid_at=week_ago.isoformat()))) == (200, "processed")
    assert result(deliver(paid())) == (200, "failed_final")
    assert result(deliver(paid(amount="1200"))) == (200, "processed")


def test_a_payment_from_the_future_does_not_get_a_future_price(buyer: User, monthly: Plan) -> None:
    tomorrow, in_two_days = (timezone.now() + timedelta(days=days) for days in (1, 2))
    PlanPriceFactory.create(plan=monthly, amount="1", valid_from=tomorrow)

    answer = deliver(paid(amount="1", paid_at=in_two_days.isoformat()))

    assert result(answer) == (200, "failed_final")


@pytest.mark.parametrize("plan_id", ["no-such-plan", "Monthly", "monthly ", "old"])
def test_an_unknown_plan_goes_to_review(buyer: User, monthly: Plan, plan_id: str) -> None:
    """Threat 23; plan codes are compared exactly (24)."""
    PlanPriceFactory.create(plan=PlanFactory.create(code="old", is_active=False))

    assert result(deliver(paid(plan_id=plan_id))) == (200, "failed_final")

    event = WebhookEvent.objects.get()
    assert (event.status, event.error_code) == ("FAILED_FINAL", "PLAN_UNKNOWN")
    assert event.review == "OPEN"
    assert not Grant.objects.exists()


def test_without_a_default_plan_a_payment_that_names_none_goes_to_review(buyer: User) -> None:
    assert result(deliver(paid())) == (200, "failed_final")
    assert WebhookEvent.objects.get().error_code == "PLAN_UNKNOWN"


@pytest.mark.parametrize(
    ("word", "payment_status"),
    [
        ("pending", "PROCESSING"),
        ("processing", "PROCESSING"),
        ("failed", "FAILED"),
        ("canceled", "CANCELED"),
        ("cancelled", "CANCELED"),
        ("refunded", "REFUNDED"),
        ("partially_refunded", "RECEIVED"),
        ("disputed", "RECEIVED"),
    ],
)
def test_what_is_no_success_grants_nothing(
    buyer: User, monthly: Plan, word: str, payment_status: str
) -> None:
    assert result(deliver(paid(status=word))) == (200, "ignored")

    event = WebhookEvent.objects.get()
    assert (event.status, event.error_code) == ("IGNORED", "NON_SUCCESS_STATUS")
    assert Payment.objects.get().status == payment_status
    assert not Grant.objects.exists()


def test_a_status_nobody_knows_is_no_success(buyer: User, monthly: Plan) -> None:
    assert result(deliver(paid(status="paid-ish"))) == (200, "ignored")
    assert WebhookEvent.objects.get().error_code == "NON_SUCCESS_STATUS"
    assert not Payment.objects.exists()


def test_a_webhook_that_is_a_week_late_is_not_shortened(buyer: User, monthly: Plan) -> None:
    week_ago = timezone.now() - timedelta(days=7)

    assert result(deliver(paid(paid_at=week_ago.isoformat()))) == (200, "processed")

    assert WebhookEvent.objects.get().status == "PROCESSED"
    assert Payment.objects.get().paid_at == week_ago
    assert Subscription.objects.get().current_period_end > timezone.now() + timedelta(days=27)


def test_a_test_payment_gives_nothing(buyer: User, monthly: Plan) -> None:
    assert result(deliver(paid(test=True))) == (200, "ignored")

    event = WebhookEvent.objects.get()
    assert (event.status, event.error_code, event.is_test) == ("IGNORED", "TEST_MODE", True)
    assert not Payment.objects.exists()


def test_a_developer_may_accept_test_payments(
    buyer: User, monthly: Plan, settings: Settings
) -> None:
    settings.ACCEPT_TEST_PAYMENTS = True

    assert result(deliver(paid(test=True))) == (200, "processed")
    assert WebhookEvent.objects.get().is_test


@pytest.mark.parametrize(
    "payload",
    [
        {"event_type": "customer.created"},
        {"event_type": "customer.created", "event_id": "evt-of-another-kind"},
    ],
)
def test_a_type_that_is_not_about_a_payment_is_ignored(payload: dict[str, str]) -> None:
    """Threat 27: judged before any id is demanded."""
    assert result(deliver(payload)) == (200, "ignored")

    event = WebhookEvent.objects.get()
    assert (event.status, event.error_code) == ("IGNORED", "UNKNOWN_TYPE")
    assert (event.event_type, event.external_event_id) == (
        "customer.created",
        payload.get("event_id"),
    )
    assert not Payment.objects.exists()


def test_money_is_kept_to_the_last_digit(buyer: User) -> None:
    plan = PlanFactory.create(is_default=True)
    PlanPriceFactory.create(plan=plan, amount="123456789012345.678", currency="KWD")

    deliver(paid(amount="123456789012345.678", currency="KWD"))

    assert Payment.objects.get().amount == Decimal("123456789012345.678")
    assert Grant.objects.exists()


def test_two_buyers_do_not_share_a_subscription(buyer: User, monthly: Plan) -> None:
    other = UserFactory.create(email="other@example.com")

    deliver(paid())
    deliver(paid(email=other.email))

    assert set(Subscription.objects.values_list("user_id", flat=True)) == {buyer.pk, other.pk}
    assert Grant.objects.count() == 2
