"""What an event brought, wherever it is kept now. Whoever reads old events reads them here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from webhooks.archive import files
from webhooks.archive.errors import ArchiveDamaged, EventRedacted
from webhooks.archive.lines import Line
from webhooks.models import WebhookEvent


@dataclass(frozen=True)
class Kept:
    raw_body: bytes
    headers: dict[str, str]
    payload: Any


def read(event: WebhookEvent) -> Kept:
    """Raises ArchiveMissing, ArchiveDamaged or EventRedacted. One query; what the caller's copy of
    the row holds may be older than the archive."""
    row = WebhookEvent.objects.values_list(
        "raw_body", "headers", "payload", "payload_hash", "archived_in"
    ).get(pk=event.pk)
    raw_body, headers, payload, payload_hash, archived_in = row
    if raw_body is not None:
        return Kept(bytes(raw_body), headers, payload)
    if archived_in is None:
        raise EventRedacted(f"event {event.pk} was erased with its customer's personal data")
    line = _find(archived_in, event.pk)
    if line.payload_hash != payload_hash:
        raise ArchiveDamaged(f"event {event.pk}: {archived_in} holds other bytes than came in")
    if line.raw_body is None:
        raise EventRedacted(f"event {event.pk} was erased with its customer's personal data")
    return Kept(line.raw_body, line.headers, line.payload)


def _find(name: str, event_id: UUID) -> Line:
    """Reads the file to its end, where the checksum is; files are small for this reason."""
    found = [line for line in files.lines_of(files.path_of(name)) if line.id == event_id]
    if len(found) != 1:
        raise ArchiveDamaged(f"{name} does not hold event {event_id}")
    return found[0]
