"""What the children do that dispatch and consume."""

from __future__ import annotations

from threading import Event
from typing import Any
from unittest import mock

from django.test import override_settings

from billing.outbox.consuming import consume
from billing.outbox.dispatching import dispatch
from billing.outbox.sinks import open_sink
from billing.outbox.sources import open_source, streams
from billing.outbox.targets import Kind, Target
from tests.faults.kill_points import KillPoints

BEFORE_SEND, AFTER_SEND = "before the message is sent", "after the message was sent"
BEFORE_DONE, AFTER_DONE = "before the message is acknowledged", "after it was acknowledged"


class _Watched:
    """A sink or a source, with points around one of its methods."""

    def __init__(self, real: Any, method: str, points: KillPoints, *names: str) -> None:
        self._real, self._method, self._points, self._names = real, method, points, names

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if name != self._method:
            return found

        def watched(*args: Any) -> Any:
            self._points.reach(self._names[0])
            result = found(*args)
            self._points.reach(self._names[1])
            return result

        return watched


def stream_target(stream: str) -> Target:
    return Target(name="bus", kind=Kind.REDIS, stream=stream, max_length=100_000)


def dispatch_until_killed(stream: str, kill_at: int | None) -> list[str]:
    """The points that were reached, if it lived."""
    points = KillPoints(kill_at)
    target = stream_target(stream)
    sink = _Watched(open_sink(target), "send", points, BEFORE_SEND, AFTER_SEND)
    with points.installed():
        dispatch(target, sink)
    return points.reached


def consume_until_killed(stream: str, kill_at: int | None) -> list[str]:
    """The points that were reached, if it lived. A dead consumer's messages are claimed at once."""
    points = KillPoints(kill_at)
    with (
        override_settings(CONSUME_STREAM=stream, CONSUME_CLAIM_AFTER_S=0),
        mock.patch.object(streams, "_BLOCK_MS", 20),
    ):
        source = _Watched(open_source("redis"), "done", points, BEFORE_DONE, AFTER_DONE)
        with points.installed():
            consume(source, stop=Event(), once=True)
    return points.reached
