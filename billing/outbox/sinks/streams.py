from __future__ import annotations

import json

from django.conf import settings
from redis import RedisError

from billing.outbox.envelopes import Envelope
from billing.outbox.redis_clients import redis_client
from billing.outbox.sinks import Unreachable
from billing.outbox.targets import Target


class StreamSink:
    """A Redis stream. An entry's fields are those of the message: id, type, key, seq,
    idempotency_key, timestamp, and data as JSON."""

    def __init__(self, target: Target) -> None:
        self._stream = target.stream
        self._max_length = target.max_length
        self._client = redis_client(target.url or settings.REDIS_URL, timeout_s=target.timeout_s)

    def send(self, message: Envelope) -> None:
        fields = {
            name: json.dumps(value) if name == "data" else str(value)
            for name, value in message.to_json().items()
            if value is not None
        }
        try:
            self._client.xadd(self._stream, fields, maxlen=self._max_length, approximate=True)  # type: ignore[arg-type]
        except (RedisError, OSError) as error:
            raise Unreachable(type(error).__name__) from error

    def close(self) -> None:
        self._client.close()
