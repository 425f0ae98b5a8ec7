"""Real inserts that PostgreSQL must refuse."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from django.db import connection

from subscriptions.models import Plan, Subscription, User
from tests.factories import PlanFactory, PlanPriceFactory, SubscriptionFactory, UserFactory
from tests.refusing import definition, refused

pytestmark = pytest.mark.django_db
DAY = datetime(2024, 1, 1, tzinfo=UTC)


def test_an_address_has_one_user_whatever_its_case(buyer: User) -> None:
    with refused("user_email_unique_by_lower_case"):
        UserFactory.create(email="BUYER@example.com")


def test_an_address_is_not_null() -> None:
    UserFactory.create()
    with refused("23502"), connection.cursor() as cursor:
        cursor.execute("UPDATE subscriptions_user SET email = NULL")


def test_a_user_has_one_subscription(buyer: User) -> None:
    SubscriptionFactory.create(user=buyer)
    with refused("subscriptions_subscription_user_id_key"):
        SubscriptionFactory.create(user=buyer)


def test_a_subscriptions_status_is_a_known_one(buyer: User) -> None:
    SubscriptionFactory.create(user=buyer)
    for status in ("INACTIVE", "ACTIVE", "CANCELED"):
        Subscription.objects.update(status=status)
    for status in ("", "EXPIRED", "active"):
        with refused("subscription_status_known"):
            Subscription.objects.update(status=status)


def test_a_subscription_has_an_end(buyer: User) -> None:
    SubscriptionFactory.create(user=buyer)
    assert Subscription.objects.get().current_period_end is not None
    with refused("23502"), connection.cursor() as cursor:
        cursor.execute("UPDATE subscriptions_subscription SET current_period_end = NULL")


def test_a_plans_code_is_unique() -> None:
    PlanFactory.create(code="monthly")
    PlanFactory.create(code="Monthly")
    with refused("subscriptions_plan_code_key"):
        PlanFactory.create(code="monthly")


def test_there_is_one_default_plan() -> None:
    PlanFactory.create(is_default=False)
    PlanFactory.create(is_default=False)
    PlanFactory.create(is_default=True)
    with refused("plan_one_default"):
        PlanFactory.create(is_default=True)


@pytest.mark.parametrize("count", [0, 1201])
def test_a_period_is_neither_nothing_nor_for_ever(count: int) -> None:
    with refused("plan_period_count_sane"):
        PlanFactory.create(period_count=count)


def test_a_periods_unit_is_a_known_one() -> None:
    with refused("plan_period_unit_known"):
        PlanFactory.create(period_unit="WEEK")


def test_a_price_starts_once(monthly: Plan) -> None:
    PlanPriceFactory.create(plan=monthly, valid_from=DAY)
    PlanPriceFactory.create(plan=monthly, valid_from=DAY, currency="USD")
    with refused("planprice_one_per_start"):
        PlanPriceFactory.create(plan=monthly, valid_from=DAY)


@pytest.mark.parametrize("value", ["'NaN'", "0", "-1"])
def test_a_price_is_finite_and_positive(monthly: Plan, value: str) -> None:
    with refused("planprice_amount_positive_and_finite"), connection.cursor() as cursor:
        cursor.execute(f"UPDATE subscriptions_planprice SET amount = {value}")


@pytest.mark.parametrize("currency", ["rub", "", "RU1"])
def test_a_prices_currency_is_three_capital_letters(monthly: Plan, currency: str) -> None:
    with refused("planprice_currency_code"):
        PlanPriceFactory.create(plan=monthly, currency=currency)


@pytest.mark.parametrize("valid_to", [DAY, datetime(2023, 1, 1, tzinfo=UTC)])
def test_a_price_ends_after_it_starts(monthly: Plan, valid_to: Any) -> None:
    with refused("planprice_ends_after_it_starts"):
        PlanPriceFactory.create(plan=monthly, valid_from=DAY, valid_to=valid_to)


def test_expiring_subscriptions_are_found_by_an_index() -> None:
    assert "(status, current_period_end)" in definition("subscription_status_end")


def test_who_paid_cannot_be_deleted(buyer: User) -> None:
    SubscriptionFactory.create(user=buyer)
    with refused("23503"), connection.cursor() as cursor:
        cursor.execute("DELETE FROM subscriptions_user")
        cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    assert Plan.objects.count() == 0
