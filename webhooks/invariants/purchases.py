"""What was bought follows from the grants: a subscription's time, an order, a booking."""

from __future__ import annotations

from collections.abc import Iterator

from billing.models import BookingStatus, OrderStatus
from subscriptions.models import SubscriptionStatus
from webhooks.invariants.querying import broken_by

# Beat expires every minute; that much it may be late.
_EXPIRY_MAY_LAG_S = 600


def subscription_ends_with_its_last_grant() -> Iterator[str]:
    """A subscription ends where its last live grant ends; without a live one, not after all that it
    was ever given."""
    return broken_by(
        """
        SELECT subscription.id FROM subscriptions_subscription AS subscription
        JOIN (
            SELECT subscription_id, max(ends_at) AS last_end,
                max(ends_at) FILTER (WHERE revoked_at IS NULL) AS last_live_end
            FROM billing_grant WHERE subscription_id IS NOT NULL GROUP BY subscription_id
        ) AS given ON given.subscription_id = subscription.id
        WHERE subscription.current_period_end <> given.last_live_end
            OR given.last_live_end IS NULL AND subscription.current_period_end > given.last_end
        """
    )


def subscription_is_active_while_paid() -> Iterator[str]:
    """A subscription with paid time left is not INACTIVE, and one without any becomes INACTIVE
    within ten minutes."""
    return broken_by(
        """
        SELECT subscription.id FROM subscriptions_subscription AS subscription
        WHERE subscription.status <> %(inactive)s
            AND subscription.current_period_end < now() - make_interval(secs => %(lag_s)s)
        UNION ALL
        -- Not now(): what expired since this transaction began has expired.
        SELECT subscription.id FROM subscriptions_subscription AS subscription
        WHERE subscription.status = %(inactive)s AND EXISTS (
            SELECT FROM billing_grant AS live
            WHERE live.subscription_id = subscription.id AND live.revoked_at IS NULL
                AND live.ends_at > clock_timestamp()
        )
        """,
        inactive=SubscriptionStatus.INACTIVE,
        lag_s=_EXPIRY_MAY_LAG_S,
    )


def grants_do_not_overlap() -> Iterator[str]:
    """No moment of a subscription was given twice: its live grants do not overlap."""
    return broken_by(
        """
        SELECT id FROM (
            SELECT id, starts_at, max(ends_at) OVER (
                PARTITION BY subscription_id ORDER BY starts_at, ends_at, id
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
            ) AS end_before
            FROM billing_grant
            WHERE subscription_id IS NOT NULL AND revoked_at IS NULL AND starts_at < ends_at
        ) AS live
        WHERE starts_at < end_before
        """
    )


def paid_order_has_one_live_grant() -> Iterator[str]:
    """An order is PAID if, and only if, exactly one live grant is of it."""
    return broken_by(
        """
        SELECT sold.id FROM billing_order AS sold
        LEFT JOIN (
            SELECT order_id, count(*) AS number FROM billing_grant
            WHERE order_id IS NOT NULL AND revoked_at IS NULL GROUP BY order_id
        ) AS live ON live.order_id = sold.id
        WHERE CASE WHEN sold.status = %(paid)s THEN 1 ELSE 0 END <> coalesce(live.number, 0)
        """,
        paid=OrderStatus.PAID,
    )


def confirmed_booking_has_a_live_grant() -> Iterator[str]:
    """A booking is CONFIRMED if, and only if, a live grant is of it."""
    return broken_by(
        """
        SELECT booking.id FROM billing_booking AS booking
        WHERE (booking.status = %(confirmed)s) <> EXISTS (
            SELECT FROM billing_grant AS live
            WHERE live.order_id = booking.order_id AND live.booking_id = booking.id
                AND live.revoked_at IS NULL
        )
        """,
        confirmed=BookingStatus.CONFIRMED,
    )


RULES = (
    subscription_ends_with_its_last_grant,
    subscription_is_active_while_paid,
    grants_do_not_overlap,
    paid_order_has_one_live_grant,
    confirmed_booking_has_a_live_grant,
)
