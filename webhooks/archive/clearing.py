"""From a file that was read back and found whole to rows that no longer hold what is in it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from uuid import UUID

from django.db import connection
from django.db.models import Q

from webhooks import audit
from webhooks.archive import files, manifests
from webhooks.archive.errors import ArchiveDamaged, ArchiveMissing
from webhooks.archive.lines import Line
from webhooks.archive.manifests import Contents
from webhooks.audit import Action, Actor
from webhooks.models import EventStatus, ReviewState, WebhookEvent
from webhooks.transactions import short_transaction

# Rows that one transaction clears.
BATCH = 500

# Nobody waits for these any more. Forged samples are pruned, not archived; conflicts stay where
# people can compare them; what was redacted has nothing left to archive.
ARCHIVABLE = (
    Q(status__in=[EventStatus.PROCESSED, EventStatus.IGNORED, EventStatus.FAILED_FINAL])
    & (Q(review__isnull=True) | ~Q(review=ReviewState.OPEN))
    & Q(
        conflict_of__isnull=True,
        forged_slot__isnull=True,
        archived_in__isnull=True,
        raw_body__isnull=False,
    )
)


def complete(name: str, *, actor: Actor, renew: Callable[[], None]) -> int:
    """Verify the file, clear its events' rows, leave in it what was cleared, and finish its
    manifest. Wherever this is killed, it can simply be done again. Returns how many it cleared."""
    path = files.path_of(name)
    if not path.exists():
        _forget(name)
        return 0
    contents = manifests.read_contents(path)
    manifests.write_pending(name, path, contents)
    cleared = 0
    ids = sorted(contents.hashes)
    for start in range(0, len(ids), BATCH):
        renew()
        cleared += _clear(name, contents, ids[start : start + BATCH], actor)
    unclaimed = contents.hashes.keys() - _pointing_to(name, ids)
    if unclaimed:
        # Somebody opened these again in the meantime. A later run archives them, in another
        # file: nothing may be in two of them, or erasing it from one would not erase it.
        rewrite(name, lambda line: None if line.id in unclaimed else line)
    else:
        manifests.finish(name)
    return cleared


def rewrite(name: str, change: Callable[[Line], Line | None]) -> None:
    """Put a changed file in this one's place, whole and verified. A line changed to None goes; a
    file without lines goes too."""
    path = files.path_of(name)
    before = manifests.read_contents(path)
    changed = (new for old in files.lines_of(path) if (new := change(old)) is not None)
    temporary = files.write_lines(name, changed)
    after = manifests.read_contents(temporary)
    # From here on, should this be killed, the next run looks at the file.
    manifests.write_pending(name, temporary, after)
    with _file_to_ourselves(name, before.identity):
        if _pointing_to(name, before.hashes.keys() - after.hashes.keys()):
            raise ArchiveDamaged(f"{name} would lose events that are nowhere else")
        if after.hashes:
            files.rename(temporary, path)
        else:
            files.remove(path)
    if after.hashes:
        manifests.finish(name)
    else:
        files.remove(temporary)
        _remove_manifests(name)


def _clear(name: str, contents: Contents, ids: list[UUID], actor: Actor) -> int:
    with _file_to_ourselves(name, contents.identity):
        locked = (
            WebhookEvent.objects.filter(ARCHIVABLE, pk__in=ids)
            .order_by("pk")
            .select_for_update(no_key=True)
            .values_list("pk", "payload_hash")
        )
        same = [pk for pk, payload_hash in locked if contents.hashes[pk] == payload_hash]
        rows = WebhookEvent.objects.filter(ARCHIVABLE, pk__in=same).update(
            raw_body=None, payload=None, headers={}, archived_in=name
        )
        if rows != len(same):
            raise ArchiveDamaged(f"{name}: {rows} of {len(same)} locked rows could be cleared")
        if rows:
            details = {"file": name, "events": rows}
            audit.write(audit.entry(Action.EVENTS_ARCHIVED, actor, details=details))
    return rows


@contextmanager
def _file_to_ourselves(name: str, identity: tuple[int, int, int]) -> Iterator[None]:
    """A short transaction in which nobody else clears rows into this file or puts another in its
    place; and the file is the one that was verified.

    The lease alone would not do: a process that was stopped for longer than its lease lasts goes
    on where it was. It must not clear a row whose line the next one has just taken out.
    """
    with short_transaction():
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [name])
        if manifests.identity_of(files.path_of(name)) != identity:
            raise ArchiveDamaged(f"{name} was changed by somebody else")
        yield


def _pointing_to(name: str, ids: Collection[UUID]) -> set[UUID]:
    rows = WebhookEvent.objects.filter(pk__in=ids, archived_in=name)
    return set(rows.values_list("pk", flat=True))


def _forget(name: str) -> None:
    """A manifest without its file: it was removed because nothing was left in it, or was lost."""
    if WebhookEvent.objects.filter(archived_in=name).exists():
        raise ArchiveMissing(f"{name} is not in {files.folder()}, and events are in it")
    _remove_manifests(name)


def _remove_manifests(name: str) -> None:
    files.remove(files.beside(name, files.MANIFEST))
    # Last: by this one the next run finds what is left to do.
    files.remove(files.beside(name, files.PENDING))
