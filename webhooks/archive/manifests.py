"""What is in a file, and that it is still that."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import UUID

from django.db import connection

from webhooks.archive import files
from webhooks.archive.errors import ArchiveDamaged, ArchiveMissing

FORMAT = 1


@dataclass(frozen=True)
class Contents:
    """What a file holds, read from beginning to end and found whole."""

    hashes: dict[UUID, str]
    redacted: frozenset[UUID]
    first_received_at: str | None
    last_received_at: str | None
    # Which file that was: a file that somebody else put in its place is another one.
    identity: tuple[int, int, int]


@dataclass(frozen=True)
class Manifest:
    format: int
    file: str
    events: int
    redacted: int
    first_received_at: str | None
    last_received_at: str | None
    bytes: int
    sha256: str
    created_at: str


def read_contents(path: Path) -> Contents:
    """Raises ArchiveMissing or ArchiveDamaged."""
    hashes: dict[UUID, str] = {}
    redacted: set[UUID] = set()
    first = last = None
    identity = identity_of(path)
    for line in files.lines_of(path):
        if line.id in hashes:
            raise ArchiveDamaged(f"{path.name} holds event {line.id} twice")
        hashes[line.id] = line.payload_hash
        if line.redacted:
            redacted.add(line.id)
        first, last = first or line.received_at, line.received_at
    return Contents(
        hashes,
        frozenset(redacted),
        first.isoformat() if first else None,
        last.isoformat() if last else None,
        identity,
    )


def identity_of(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except FileNotFoundError as error:
        raise ArchiveMissing(f"{path.name} is not in {path.parent}") from error
    return status.st_ino, status.st_size, status.st_mtime_ns


def write_pending(name: str, path: Path, contents: Contents) -> None:
    """`path` holds what `name` holds, or will hold."""
    manifest = Manifest(
        format=FORMAT,
        file=name,
        events=len(contents.hashes),
        redacted=len(contents.redacted),
        first_received_at=contents.first_received_at,
        last_received_at=contents.last_received_at,
        bytes=path.stat().st_size,
        sha256=sha256_of(path),
        created_at=_now(),
    )
    files.write_text(files.beside(name, files.PENDING), json.dumps(asdict(manifest), indent=2))


def finish(name: str) -> None:
    files.rename(files.beside(name, files.PENDING), files.beside(name, files.MANIFEST))


def read_manifest(name: str) -> Manifest:
    path = files.beside(name, files.MANIFEST)
    try:
        return Manifest(**json.loads(path.read_text()))
    except FileNotFoundError as error:
        raise ArchiveMissing(f"{path.name} is not in {path.parent}") from error
    except (ValueError, TypeError) as error:
        raise ArchiveDamaged(f"{path.name} cannot be read: {type(error).__name__}") from error


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _now() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
        return str(cursor.fetchone()[0].isoformat())
