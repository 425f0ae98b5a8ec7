"""librdkafka's built-in cluster: a real broker protocol on loopback, in this very process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import Producer


@contextmanager
def kafka_cluster() -> Iterator[str]:
    """Its address. It lives as long as the client that made it."""
    owner = Producer({"bootstrap.servers": "unused", "test.mock.num.brokers": 1, "log_level": 0})
    (broker,) = owner.list_topics(timeout=10).brokers.values()
    yield f"{broker.host}:{broker.port}"
    del owner
