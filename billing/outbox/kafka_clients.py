"""Kafka is an optional extra: only a deployment that names it needs the library."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from django.core.exceptions import ImproperlyConfigured

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer

# librdkafka's own lines, as JSON like all the others.
_logger = logging.getLogger("kafka")


def producer(servers: str, options: dict[str, str], *, timeout_s: int) -> Producer:
    _import()
    from confluent_kafka import Producer

    return Producer(
        {
            "client.id": "tollgate",
            # Only once every replica that must have it does, and once per produced message.
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": timeout_s * 1000,
            "linger.ms": 0,
            "log.connection.close": False,
            **options,
            "bootstrap.servers": servers,
        },
        logger=_logger,
    )


def consumer(servers: str, options: dict[str, str], *, group: str) -> Consumer:
    _import()
    from confluent_kafka import Consumer

    return Consumer(
        {
            "client.id": "tollgate",
            "auto.offset.reset": "earliest",
            "enable.partition.eof": True,
            "log.connection.close": False,
            **options,
            # Whatever the options say: an offset counts as done only after our own commit.
            "enable.auto.commit": False,
            "group.id": group,
            "bootstrap.servers": servers,
        },
        logger=_logger,
    )


def _import() -> None:
    try:
        import confluent_kafka  # noqa: F401
    except ImportError as error:
        raise ImproperlyConfigured(
            "Kafka is configured, but its library is not installed: "
            "pip install -r requirements-kafka.txt"
        ) from error
