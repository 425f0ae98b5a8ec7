"""Data for the tests. Events and payments come in through the door, not from here."""

from datetime import UTC, datetime

import factory
from factory.django import DjangoModelFactory

from subscriptions.models import PeriodUnit, Plan, PlanPrice, Subscription, User


class UserFactory(DjangoModelFactory[User]):
    class Meta:
        model = User

    email = factory.Sequence(lambda n: f"user{n}@example.com")


class StaffFactory(UserFactory):
    is_staff = True
    is_superuser = True


class PlanFactory(DjangoModelFactory[Plan]):
    class Meta:
        model = Plan

    code = factory.Sequence(lambda n: f"plan{n}")
    name = factory.SelfAttribute("code")
    period_count = 1
    period_unit = PeriodUnit.MONTH


class PlanPriceFactory(DjangoModelFactory[PlanPrice]):
    class Meta:
        model = PlanPrice

    plan = factory.SubFactory(PlanFactory)
    amount = "990"
    currency = "RUB"
    valid_from = factory.LazyFunction(lambda: datetime(2020, 1, 1, tzinfo=UTC))


class SubscriptionFactory(DjangoModelFactory[Subscription]):
    class Meta:
        model = Subscription

    user = factory.SubFactory(UserFactory)
