from datetime import UTC, datetime, timedelta

import psycopg
import pytest
from django.db import OperationalError, connection, transaction
from django.db.models.functions import Now

from subscriptions.extending import extend
from subscriptions.models import Subscription, User
from tests.factories import PlanFactory, SubscriptionFactory, UserFactory
from tests.looking import database_parameters

NOON = datetime(2030, 1, 31, 12, tzinfo=UTC)
pytestmark = pytest.mark.django_db


def test_the_first_payment_makes_the_subscription(buyer: User) -> None:
    extension = extend(user_id=buyer.pk, plan=PlanFactory.create(), now=NOON)

    subscription = Subscription.objects.get()
    assert (subscription.user, subscription.status) == (buyer, "ACTIVE")
    assert subscription.pk == extension.subscription_id
    assert subscription.current_period_end == extension.ends_at
    assert extension.ends_at == datetime(2030, 2, 28, 12, tzinfo=UTC)
    assert extension.starts_at == NOON


@pytest.mark.parametrize("status", ["INACTIVE", "ACTIVE", "CANCELED"])
@pytest.mark.parametrize(
    ("end", "starts_at"),
    [(NOON + timedelta(days=9), NOON + timedelta(days=9)), (NOON - timedelta(days=9), NOON)],
)
def test_it_counts_from_the_later_of_now_and_the_end(
    buyer: User, status: str, end: datetime, starts_at: datetime
) -> None:
    SubscriptionFactory.create(user=buyer, status=status, current_period_end=end)
    plan = PlanFactory.create(period_count=10, period_unit="DAY")

    extension = extend(user_id=buyer.pk, plan=plan, now=NOON)

    assert (extension.end_before, extension.starts_at) == (end, starts_at)
    subscription = Subscription.objects.get()
    assert subscription.status == "ACTIVE"
    assert subscription.current_period_end == starts_at + timedelta(days=10)


def test_two_payments_give_two_adjacent_periods(buyer: User) -> None:
    plan = PlanFactory.create()
    first = extend(user_id=buyer.pk, plan=plan, now=NOON)
    second = extend(user_id=buyer.pk, plan=plan, now=NOON)
    assert second.starts_at == second.end_before == first.ends_at


def test_nobody_elses_time_is_touched(buyer: User) -> None:
    other = SubscriptionFactory.create(user=UserFactory.create())
    end = Subscription.objects.get().current_period_end
    extend(user_id=buyer.pk, plan=PlanFactory.create(), now=NOON)
    other.refresh_from_db()
    assert (other.status, other.current_period_end) == ("INACTIVE", end)


@pytest.mark.django_db(transaction=True)
def test_the_subscription_stays_locked_until_the_end(buyer: User) -> None:
    """Two payments at once must not both read the same end."""
    SubscriptionFactory.create(user=buyer, current_period_end=Now())
    plan = PlanFactory.create()
    with psycopg.connect(**database_parameters()) as other, transaction.atomic():
        extend(user_id=buyer.pk, plan=plan, now=NOON)
        with pytest.raises(psycopg.errors.LockNotAvailable):
            other.execute("SELECT 1 FROM subscriptions_subscription FOR UPDATE NOWAIT")


@pytest.mark.django_db(transaction=True)
def test_it_waits_for_whoever_has_the_lock_before_it_reads(buyer: User) -> None:
    SubscriptionFactory.create(user=buyer, current_period_end=Now())
    plan = PlanFactory.create()
    with psycopg.connect(**database_parameters()) as other:
        other.execute("SELECT 1 FROM subscriptions_subscription FOR UPDATE")
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SET LOCAL lock_timeout = 50")
            with pytest.raises(OperationalError), transaction.atomic():
                extend(user_id=buyer.pk, plan=plan, now=NOON)
