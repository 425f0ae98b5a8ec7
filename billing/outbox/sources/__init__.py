"""Where messages come from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from billing.outbox.incoming import Incoming


class SourceAway(Exception):
    """It does not answer, or not as it should. The text is for the log."""


class Source(Protocol):
    def next(self) -> Sequence[Incoming]:
        """Waits about a second; raises SourceAway."""

    def done(self, incoming: Incoming) -> None:
        """It need not come again; raises SourceAway."""

    def is_drained(self) -> bool:
        """After a `next` that brought nothing: whether there is nothing more now."""

    def close(self) -> None: ...


def open_source(kind: str) -> Source:
    if kind == "kafka":
        from billing.outbox.sources.topics import TopicSource

        return TopicSource()
    from billing.outbox.sources.streams import StreamSource

    return StreamSource()
