"""That every file holds what its manifest says, and exactly the events that look for it there."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from django.db.models import Count

from webhooks.archive import files, manifests
from webhooks.archive.errors import ArchiveError
from webhooks.models import WebhookEvent


def problems(on_file: Callable[[], object] = int) -> Iterator[str]:
    """Reads every file to its end. A file that the archiver is writing at this moment may show up
    here; one that still does when the archiver is through is a finding."""
    rows = WebhookEvent.objects.filter(archived_in__isnull=False).values_list("archived_in")
    expected: dict[str, int] = dict(rows.annotate(Count("pk")).order_by())
    for name in files.data_files():
        try:
            yield from _problems_of(name, expected.pop(name, 0))
        except ArchiveError as error:
            yield str(error)
        on_file()
    for name, events in sorted(expected.items()):
        yield f"{name} is missing, and {events} event(s) are in it"


def _problems_of(name: str, expected: int) -> Iterator[str]:
    path = files.path_of(name)
    hashes = manifests.read_contents(path).hashes
    if files.beside(name, files.PENDING).exists():
        yield f"{name} is unfinished: archive_events or redact_customer was killed; run it again"
    elif manifests.read_manifest(name).sha256 != manifests.sha256_of(path):
        yield f"{name} is not the file that its manifest tells of"
    looked_for = dict(
        WebhookEvent.objects.filter(archived_in=name, pk__in=list(hashes)).values_list(
            "pk", "payload_hash"
        )
    )
    if others := [pk for pk, payload_hash in looked_for.items() if hashes[pk] != payload_hash]:
        yield f"{name} holds other bytes than came in for {len(others)} event(s): {others[0]}, …"
    if unclaimed := hashes.keys() - looked_for.keys():
        yield f"{name} holds {len(unclaimed)} event(s) that the database has elsewhere"
    if expected > len(looked_for):
        yield f"{name} lacks {expected - len(looked_for)} event(s) that the database has there"
