from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from django.conf import settings
from redis import RedisError, ResponseError

from billing.outbox.incoming import Incoming
from billing.outbox.redis_clients import redis_client
from billing.outbox.sources import SourceAway

_BATCH = 10
_BLOCK_MS = 1000


class StreamSource:
    """A Redis stream with a consumer group; an entry's field `data` is the message."""

    def __init__(self) -> None:
        self._stream: str = settings.CONSUME_STREAM
        self._group: str = settings.CONSUME_GROUP
        self._me = f"{socket.gethostname()}-{os.getpid()}"
        # More than it may block.
        self._client = redis_client(settings.CONSUME_REDIS_URL, timeout_s=5)
        self._has_group = False
        self._claim_at = monotonic()

    def next(self) -> list[Incoming]:
        with self._errors():
            self._make_group()
            entries = self._claimed() or self._new()
            found = [entry for entry in entries if entry[0] is not None]
            # Deleted from the stream while somebody had them: there is nothing left to take.
            if gone := [entry_id for entry_id, fields in found if not fields]:
                self._client.xack(self._stream, self._group, *gone)
        return [self._incoming(entry_id, fields) for entry_id, fields in found if fields]

    def done(self, incoming: Incoming) -> None:
        with self._errors():
            self._client.xack(self._stream, self._group, incoming.token)

    def is_drained(self) -> bool:
        return True

    def close(self) -> None:
        """Takes our name off the list, unless it would take unfinished messages with it."""
        try:
            mine = self._client.xpending_range(
                self._stream, self._group, "-", "+", 1, consumername=self._me
            )
            if not mine:
                self._client.xgroup_delconsumer(self._stream, self._group, self._me)
        except RedisError:
            pass
        self._client.close()

    def _make_group(self) -> None:
        if self._has_group:
            return
        try:
            self._client.xgroup_create(self._stream, self._group, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise
        self._has_group = True

    def _claimed(self) -> list[Any]:
        """What a consumer took and did not finish: it died, or the database is away."""
        if monotonic() < self._claim_at:
            return []
        idle_ms = int(settings.CONSUME_CLAIM_AFTER_S * 1000)
        _, entries, *_ = self._client.xautoclaim(
            self._stream, self._group, self._me, idle_ms, start_id="0-0", count=_BATCH
        )
        if not entries:
            self._claim_at = monotonic() + settings.CONSUME_CLAIM_AFTER_S / 2
        return list(entries)

    def _new(self) -> list[Any]:
        streams: Any = self._client.xreadgroup(
            self._group, self._me, {self._stream: ">"}, count=_BATCH, block=_BLOCK_MS
        )
        return list(streams[0][1]) if streams else []

    def _incoming(self, entry_id: bytes, fields: dict[bytes, bytes]) -> Incoming:
        body = fields.get(b"data")
        if body is None:
            # Not ours to understand, but a person's to see.
            shown = {repr(name): repr(value) for name, value in fields.items()}
            body = json.dumps(shown).encode()
        position = f"{self._stream}/{entry_id.decode()}"
        return Incoming("redis", position, body, token=entry_id)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (RedisError, OSError) as error:
            # A Redis that was emptied has lost the group, too.
            self._has_group = False
            raise SourceAway(type(error).__name__) from error
