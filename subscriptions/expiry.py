from uuid import UUID

from django.db import connection

from subscriptions.models import SubscriptionStatus


def expire(*, limit: int) -> list[UUID]:
    """Make subscriptions whose time is over INACTIVE, `limit` at most; return which.

    The condition is read again under each row's lock, so that a payment which extends one at
    this very moment wins; rows that are locked right now wait for the next run.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            """
            UPDATE subscriptions_subscription SET status = %(inactive)s, updated_at = now()
            WHERE id IN (
                SELECT id FROM subscriptions_subscription
                WHERE status <> %(inactive)s AND current_period_end <= now()
                ORDER BY id LIMIT %(limit)s FOR UPDATE SKIP LOCKED
            )
            RETURNING id
            """,
            {"inactive": SubscriptionStatus.INACTIVE, "limit": limit},
        )
        return [row[0] for row in cursor.fetchall()]
