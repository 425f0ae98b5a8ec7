import pytest

from subscriptions.models import Plan, User
from tests.factories import PlanFactory, PlanPriceFactory, UserFactory


@pytest.fixture
def buyer(db: None) -> User:
    return UserFactory.create(email="buyer@example.com")


@pytest.fixture
def monthly(db: None) -> Plan:
    """The default plan: 990 RUB a month."""
    plan = PlanFactory.create(code="monthly", is_default=True)
    PlanPriceFactory.create(plan=plan, amount="990", currency="RUB")
    return plan
