"""Data for the tests. Events and payments come in through the door, not from here."""

from datetime import UTC, datetime

import factory
from factory.django import DjangoModelFactory

from billing.models import Booking, Order, Purchase, Wallet
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


class WalletFactory(DjangoModelFactory[Wallet]):
    class Meta:
        model = Wallet

    user = factory.SubFactory(UserFactory)
    currency = "RUB"


class OrderFactory(DjangoModelFactory[Order]):
    """Of a subscription."""

    class Meta:
        model = Order

    merchant_uid = factory.Sequence(lambda n: f"order-{n}")
    buys = Purchase.SUBSCRIPTION
    amount = "500"
    currency = "RUB"
    user = factory.SubFactory(UserFactory)
    plan = factory.SubFactory(PlanFactory)


class TopupFactory(OrderFactory):
    buys = Purchase.WALLET_TOPUP
    plan = None  # type: ignore[assignment]
    wallet = factory.SubFactory(
        WalletFactory,
        user=factory.SelfAttribute("..user"),
        currency=factory.SelfAttribute("..currency"),
    )


class BookingFactory(DjangoModelFactory[Booking]):
    """With its order."""

    class Meta:
        model = Booking

    order = factory.SubFactory(OrderFactory, buys=Purchase.BOOKING, plan=None)
    reference = "room 7"
