from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db import connection

from subscriptions.models import SubscriptionStatus


@dataclass(frozen=True)
class Expired:
    subscription_id: UUID
    user_id: UUID
    ended_at: datetime


def expire(*, limit: int) -> list[Expired]:
    """Make subscriptions whose time is over INACTIVE, `limit` at most; return which.

    The condition is read again under each row's lock, so that a payment which extends one at
    this very moment wins; rows that are locked right now wait for the next run.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            """
            WITH over AS MATERIALIZED (
                SELECT id FROM subscriptions_subscription
                WHERE status IN (%(active)s, %(canceled)s) AND current_period_end <= now()
                ORDER BY current_period_end LIMIT %(limit)s FOR UPDATE SKIP LOCKED
            )
            UPDATE subscriptions_subscription AS subscription
            SET status = %(inactive)s, updated_at = now()
            FROM over WHERE subscription.id = over.id
            RETURNING subscription.id, user_id, current_period_end
            """,
            {
                "active": SubscriptionStatus.ACTIVE,
                "canceled": SubscriptionStatus.CANCELED,
                "inactive": SubscriptionStatus.INACTIVE,
                "limit": limit,
            },
        )
        return [Expired(*row) for row in cursor.fetchall()]
