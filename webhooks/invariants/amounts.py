"""Every sum of money is finite, and one that its currency can express."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import connection

from billing.money import exponent
from webhooks.invariants.querying import broken_by

# Where the sums are, each with the currency it is in. A fact without a currency may have any
# decimals that the column has.
_SUMS = """
    SELECT 'payment ' || id AS of_what, amount, currency FROM billing_payment
    UNION ALL SELECT 'fact ' || id, amount, currency FROM billing_fact
    UNION ALL SELECT 'refund ' || id, amount, currency FROM billing_refund
    UNION ALL SELECT 'order ' || id, amount, currency FROM billing_order
    UNION ALL SELECT 'price ' || id, amount, currency FROM subscriptions_planprice
    UNION ALL SELECT 'entry ' || entry.id, abs(entry.amount), wallet.currency
        FROM billing_walletentry AS entry JOIN billing_wallet AS wallet ON wallet.id = wallet_id
    UNION ALL SELECT 'reservation ' || reservation.id, reservation.amount, wallet.currency
        FROM billing_reservation AS reservation
        JOIN billing_wallet AS wallet ON wallet.id = wallet_id
    UNION ALL SELECT 'grant ' || given.id, given.amount, wallet.currency
        FROM billing_grant AS given JOIN billing_wallet AS wallet ON wallet.id = given.wallet_id
"""
_CURRENCIES = """
    SELECT currency FROM billing_payment UNION SELECT currency FROM billing_fact
    UNION SELECT currency FROM billing_refund UNION SELECT currency FROM billing_order
    UNION SELECT currency FROM billing_wallet UNION SELECT currency FROM subscriptions_planprice
"""


def amounts_are_sound() -> Iterator[str]:
    """Every sum is finite, greater than zero and of no more decimals than its currency has; what
    was refunded is finite and not negative."""
    with connection.cursor() as cursor:
        cursor.execute(_CURRENCIES)
        currencies = [row[0] for row in cursor.fetchall() if row[0] is not None]
    # NaN is greater than every number in PostgreSQL, so the upper bound refuses it as well.
    return broken_by(
        f"""
        SELECT of_what FROM ({_SUMS}) AS sums
        LEFT JOIN unnest(%(currencies)s::text[], %(decimals)s::int[]) AS known (code, decimals)
            ON known.code = sums.currency
        WHERE NOT (amount > 0 AND amount < 1e15)
            OR scale(trim_scale(amount)) > coalesce(known.decimals, 4)
        UNION ALL
        SELECT 'payment ' || id FROM billing_payment
        WHERE NOT (amount_refunded >= 0 AND amount_refunded < 1e15)
        UNION ALL
        SELECT 'fact ' || id FROM billing_fact
        WHERE NOT (amount_refunded >= 0 AND amount_refunded < 1e15)
        """,  # noqa: S608 (our own words only)
        currencies=currencies,
        decimals=[exponent(currency) for currency in currencies],
    )


RULES = (amounts_are_sound,)
