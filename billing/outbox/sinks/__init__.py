"""Where messages go. A sink sends one message and returns once the other side has it."""

from __future__ import annotations

from typing import Protocol

from billing.outbox.envelopes import Envelope
from billing.outbox.targets import Kind, Target


class Refused(Exception):
    """The message's fault: the target is there and does not want this one."""


class Unreachable(Exception):
    """The target's fault: it is not there, not well, or asks for patience."""

    def __init__(self, why: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


class Sink(Protocol):
    def send(self, message: Envelope) -> None:
        """Raises Refused or Unreachable, with a text that quotes neither message nor secret."""

    def close(self) -> None: ...


def open_sink(target: Target) -> Sink:
    """Connects to nothing yet. The imports are late, so that a process which only writes messages
    loads no client."""
    match target.kind:
        case Kind.HTTP:
            from billing.outbox.sinks.http import HttpSink

            return HttpSink(target)
        case Kind.REDIS:
            from billing.outbox.sinks.streams import StreamSink

            return StreamSink(target)
        case Kind.KAFKA:
            from billing.outbox.sinks.topics import TopicSink

            return TopicSink(target)
        case Kind.READ_MODEL:
            from billing.outbox.sinks.views import ViewSink

            return ViewSink()
