"""Latency: whoever wrote messages tells the dispatchers to look now. Nothing depends on it, since
they look every second anyway."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from time import monotonic

import structlog
from django.conf import settings
from redis import Redis, RedisError

from billing.outbox.redis_clients import redis_client

logger = structlog.get_logger("billing")

CHANNEL = "tollgate.outbox"
# This runs in the request, after the commit, so a Redis that hangs may cost only this much, and
# only once in a while.
_PATIENCE_S = 0.2
_PAUSE_AFTER_FAILURE_S = 10.0

_client: Redis | None = None
_not_before = 0.0


def wake() -> None:
    """Tell the dispatchers to look now. Never raises, never takes long."""
    global _client, _not_before  # noqa: PLW0603 (a connection and a breaker per process)
    if not settings.REDIS_URL or monotonic() < _not_before:
        return
    try:
        if _client is None:
            _client = redis_client(settings.REDIS_URL, timeout_s=_PATIENCE_S)
        _client.publish(CHANNEL, "")
    except Exception as error:  # noqa: BLE001 (what is committed must not fail any more)
        # Before anything else: the other threads need not find out by themselves.
        _not_before = monotonic() + _PAUSE_AFTER_FAILURE_S
        logger.warning("outbox_wake_failed", exception=type(error).__name__)


def listen(on_wake: Callable[[], None], *, stop: Event) -> None:
    """Call `on_wake` at every wake-up until `stop`. While Redis is away there are none."""
    while not stop.is_set() and settings.REDIS_URL:
        try:
            with redis_client(settings.REDIS_URL, timeout_s=5) as client, client.pubsub() as ears:
                ears.subscribe(CHANNEL)
                # Also for what was missed before we listened: the first thing heard is that we do.
                while not stop.is_set():
                    if ears.get_message(timeout=1.0) is not None:
                        on_wake()
        except (RedisError, OSError) as error:
            logger.warning("outbox_listening_failed", exception=type(error).__name__)
            stop.wait(2)
