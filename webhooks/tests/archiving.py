"""Old events for the tests of the archive, and the commands on them."""

from __future__ import annotations

import gzip
import json
from datetime import timedelta
from io import StringIO
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.db.models.functions import Now

from tests.sending import deliver, paid
from webhooks.models import WebhookEvent


def old_event(*, days: float = 100, **fields: Any) -> WebhookEvent:
    """Came in through the door, that long ago."""
    payload = paid(**fields)
    assert deliver(payload).status_code == 200
    event = WebhookEvent.objects.get(external_event_id=payload["event_id"])
    WebhookEvent.objects.filter(pk=event.pk).update(received_at=Now() - timedelta(days=days))
    event.refresh_from_db()
    return event


def run_command(name: str, *arguments: object) -> str:
    out = StringIO()
    call_command(name, *map(str, arguments), stdout=out, stderr=StringIO())
    return out.getvalue()


def archive(*arguments: object) -> str:
    return run_command("archive_events", *arguments)


def data_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.jsonl.gz"))


def documents(folder: Path) -> list[dict[str, Any]]:
    """Every line of every file, in order."""
    texts = [gzip.decompress(path.read_bytes()).decode() for path in data_files(folder)]
    return [json.loads(line) for text in texts for line in text.splitlines()]


def manifest_of(path: Path) -> dict[str, Any]:
    name = path.name.removesuffix(".jsonl.gz") + ".manifest.json"
    manifest: dict[str, Any] = json.loads(path.with_name(name).read_text())
    return manifest
