"""From rows to files: old finished events, oldest first, file by file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import chain
from uuid import UUID

from django.db import connection
from django.db.models import Q, QuerySet

from subscriptions.ids import time_ordered_id
from webhooks.archive import files
from webhooks.archive.clearing import ARCHIVABLE, complete
from webhooks.archive.errors import ArchiveDamaged
from webhooks.archive.leasing import archive_to_ourselves
from webhooks.archive.lines import Line
from webhooks.audit import Actor
from webhooks.models import WebhookEvent

# To read one event is to read its file, so files are small.
FILE_EVENTS = 2_000
FILE_BYTES = 16 * 1024 * 1024
# Rows that are in memory at once; each may bring as much as WEBHOOK_MAX_BODY_BYTES.
PAGE = 50


@dataclass
class Archived:
    events: int = 0
    # Those included that a run before this one was killed over.
    files: int = 0
    # Their bytes are not those that came in; they stay where they are, for a person to look at.
    damaged: list[UUID] = field(default_factory=list)


def archivable(before: datetime) -> QuerySet[WebhookEvent]:
    return WebhookEvent.objects.filter(ARCHIVABLE, received_at__lt=before)


def moment_before(age: timedelta) -> datetime:
    """By the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT now() - make_interval(secs => %s)", [age.total_seconds()])
        moment: datetime = cursor.fetchone()[0]
        return moment


def archive_events(
    *,
    before: datetime,
    actor: Actor,
    limit: int | None = None,
    file_events: int = FILE_EVENTS,
    on_progress: Callable[[int], object] = int,
) -> Archived:
    """Raises ArchiveError; what is cleared by then is archived, the rest is for the next run."""
    done = Archived()
    with archive_to_ourselves() as renew:
        files.make_folder()
        files.remove_unfinished()
        batch = _Batch(before, limit, file_events, done.damaged, renew)
        for name in chain(files.leftovers(), iter(batch.write_next, None)):
            cleared = complete(name, actor=actor, renew=renew)
            done.files += 1
            done.events += cleared
            on_progress(cleared)
    return done


class _Batch:
    """Walks through the rows once, in order, so that what cannot be archived is met only once."""

    def __init__(
        self,
        before: datetime,
        limit: int | None,
        file_events: int,
        damaged: list[UUID],
        renew: Callable[[], None],
    ) -> None:
        self._before = before
        self._left = limit
        self._file_events = file_events
        self._damaged = damaged
        self._renew = renew
        self._after: tuple[datetime, UUID] | None = None

    def write_next(self) -> str | None:
        """The next file's name; it is whole and on the disk. None: nothing is left to do."""
        first = next(lines := self._lines(), None)
        if first is None:
            return None
        name = f"events-{first.received_at:%Y%m%d}-{time_ordered_id().hex}{files.DATA}"
        temporary = files.write_lines(name, self._until_full(first, lines))
        files.rename(temporary, files.path_of(name))
        return name

    def _until_full(self, first: Line, others: Iterator[Line]) -> Iterator[Line]:
        events = size = 0
        line: Line | None = first
        while line is not None:
            events, size = events + 1, size + len(line.raw_body or b"")
            self._after = (line.received_at, line.id)
            if self._left is not None:
                self._left -= 1
            yield line
            if events >= self._file_events or size >= FILE_BYTES or self._left == 0:
                return
            line = next(others, None)

    def _lines(self) -> Iterator[Line]:
        while self._left is None or self._left > 0:
            self._renew()
            page = self._page()
            if not page:
                return
            for line in page:
                try:
                    line.check()
                except ArchiveDamaged:
                    self._damaged.append(line.id)
                    self._after = (line.received_at, line.id)
                    continue
                yield line

    def _page(self) -> list[Line]:
        rows = archivable(self._before).order_by("received_at", "pk")
        if self._after is not None:
            moment, pk = self._after
            rows = rows.filter(Q(received_at__gt=moment) | Q(received_at=moment, pk__gt=pk))
            rows = rows.filter(received_at__gte=moment)  # for the index
        columns = ("pk", "provider", "payload_hash", "received_at", "raw_body", "headers")
        return [
            Line(pk, provider, payload_hash, received_at, bytes(raw_body), headers, payload)
            for pk, provider, payload_hash, received_at, raw_body, headers, payload in (
                rows.values_list(*columns, "payload")[:PAGE]
            )
        ]
