from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from subscriptions.models import Plan
from subscriptions.prices import find_offer
from tests.factories import PlanFactory, PlanPriceFactory

pytestmark = pytest.mark.django_db
JUNE = datetime(2024, 6, 1, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def _price(
    plan_code: str | None = None, currency: str | None = "RUB", at: datetime = JUNE
) -> Decimal | None:
    offer = find_offer(plan_code=plan_code, currency=currency, at=at)
    assert offer
    return offer.price


def test_the_default_plan_is_what_nobody_named(monthly: Plan) -> None:
    PlanPriceFactory.create(plan=PlanFactory.create(code="yearly"), amount="9900")
    offer = find_offer(plan_code=None, currency="RUB", at=JUNE)
    assert offer
    assert (offer.plan, offer.price) == (monthly, Decimal(990))
    assert _price("yearly") == Decimal(9900)


@pytest.mark.parametrize("code", ["nothing", "MONTHLY", "monthly ", "old"])
def test_there_is_no_offer_of_what_is_not_on_sale(monthly: Plan, code: str) -> None:
    PlanFactory.create(code="old", is_active=False)
    assert find_offer(plan_code=code, currency="RUB", at=JUNE) is None


def test_a_default_plan_that_is_not_on_sale_is_none(monthly: Plan) -> None:
    Plan.objects.update(is_active=False)
    assert find_offer(plan_code=None, currency="RUB", at=JUNE) is None


@pytest.mark.parametrize("currency", ["USD", None, ""])
def test_a_plan_may_not_be_sold_in_a_currency(monthly: Plan, currency: str | None) -> None:
    assert _price(currency=currency) is None


def test_each_moment_has_its_price() -> None:
    plan = PlanFactory.create(is_default=True)
    PlanPriceFactory.create(plan=plan, amount="100", valid_from=JUNE, valid_to=JUNE + 5 * SECOND)
    PlanPriceFactory.create(plan=plan, amount="200", valid_from=JUNE + 10 * SECOND)
    prices = [_price(at=JUNE + number * SECOND) for number in (-1, 0, 4, 5, 9, 10, 10**6)]
    assert prices == [None, 100, 100, None, None, 200, 200]


def test_of_two_prices_the_newer_counts() -> None:
    plan = PlanFactory.create(is_default=True)
    for months, amount in ((2, "300"), (3, "100"), (1, "200")):
        PlanPriceFactory.create(
            plan=plan, amount=amount, valid_from=JUNE - timedelta(days=30 * months)
        )
    assert _price() == Decimal(200)
