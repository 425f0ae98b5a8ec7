from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import connection
from django.db.models import Case, F, Value, When

from subscriptions.ids import time_ordered_id
from subscriptions.models import Plan, Subscription, SubscriptionStatus
from subscriptions.periods import end_of_period


@dataclass(frozen=True)
class Extension:
    subscription_id: UUID
    end_before: datetime
    starts_at: datetime
    ends_at: datetime


def extend(*, user_id: UUID, plan: Plan, now: datetime) -> Extension:
    """`max(current_period_end, now) + the plan's period`, under the subscription's lock.

    Time already paid for is kept, and a payment that arrives late is not shortened by its delay.
    """
    subscription_id, end_before = _find_or_create_locked(user_id)
    starts_at = max(end_before, now)
    ends_at = end_of_period(starts_at, plan)
    Subscription.objects.filter(pk=subscription_id).update(
        status=SubscriptionStatus.ACTIVE, current_period_end=ends_at, updated_at=now
    )
    return Extension(subscription_id, end_before, starts_at, ends_at)


def lock_end(subscription_id: UUID) -> datetime:
    """The subscription's end, under its lock."""
    rows = Subscription.objects.filter(pk=subscription_id).select_for_update(no_key=True)
    return rows.values_list("current_period_end", flat=True).get()


def move_end(subscription_id: UUID, *, to: datetime, now: datetime) -> None:
    """Under its lock. With time left, an inactive subscription is active again, and a canceled one
    stays canceled; with none left it is inactive."""
    left = to > now
    Subscription.objects.filter(pk=subscription_id).update(
        current_period_end=to,
        status=Case(
            When(status=SubscriptionStatus.INACTIVE, then=Value(SubscriptionStatus.ACTIVE)),
            default=F("status"),
        )
        if left
        else Value(SubscriptionStatus.INACTIVE),
        updated_at=now,
    )


def _find_or_create_locked(user_id: UUID) -> tuple[UUID, datetime]:
    """The no-op update takes the row's lock, so that two payments of one subscription queue up
    here instead of both reading the same end."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO subscriptions_subscription (id, user_id, status, current_period_end)
            VALUES (%s, %s, %s, now())
            ON CONFLICT (user_id) DO UPDATE SET user_id = excluded.user_id
            RETURNING id, current_period_end
            """,
            [time_ordered_id(), user_id, SubscriptionStatus.INACTIVE],
        )
        subscription_id, end = cursor.fetchone()
    return subscription_id, end
