"""How far behind the outbox is, per target, for /metrics. From partial indexes over what is not
through yet, so the cost follows the backlog; the labels are the targets that settings name."""

from __future__ import annotations

from collections.abc import Iterator

from django.db import connection
from prometheus_client.core import GaugeMetricFamily

from billing.outbox.targets import target_names
from webhooks.transactions import short_transaction

_SQL = """
    WITH open AS (
        SELECT target,
            count(*) FILTER (WHERE status = 'PENDING') AS pending,
            count(*) FILTER (WHERE status = 'DEAD') AS dead,
            min(id) FILTER (WHERE status = 'PENDING') AS oldest
        FROM billing_outboxdelivery
        WHERE status IN ('PENDING', 'DEAD') AND target = ANY(%(names)s::text[])
        GROUP BY target
    )
    SELECT wanted.name, coalesce(open.pending, 0), coalesce(open.dead, 0),
        greatest(extract(epoch FROM now() - message.created_at), 0)::float,
        coalesce(held.open_until > now(), false)::int
    FROM unnest(%(names)s::text[]) AS wanted (name)
    LEFT JOIN open ON open.target = wanted.name
    LEFT JOIN billing_outboxdelivery AS delivery ON delivery.id = open.oldest
    LEFT JOIN billing_outboxmessage AS message ON message.id = delivery.message_id
    LEFT JOIN billing_outboxtarget AS held ON held.name = wanted.name
"""
_GAUGES = (
    ("outbox_pending", "Messages that a target has not got yet"),
    ("outbox_dead", "Messages given up, which wait for a person"),
    ("outbox_oldest_pending_seconds", "Age of the oldest message that a target has not got yet"),
    ("outbox_breaker_open", "Whether a target is left alone because it failed"),
)


def outbox_gauges() -> Iterator[GaugeMetricFamily]:
    """Raises the database's errors."""
    with short_transaction(), connection.cursor() as cursor:
        cursor.execute(_SQL, {"names": target_names()})
        rows = cursor.fetchall()
        cursor.execute("SELECT count(*) FROM billing_poisonmessage WHERE review = 'OPEN'")
        (poison,) = cursor.fetchone()
    for place, (name, documentation) in enumerate(_GAUGES, 1):
        gauge = GaugeMetricFamily(name, documentation, labels=["target"])
        for row in rows:
            gauge.add_metric([row[0]], row[place])
        yield gauge
    yield GaugeMetricFamily(
        "outbox_poison_open", "Incoming messages that wait for a person", value=poison
    )
