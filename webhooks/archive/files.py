"""The archive's folder: `events-….jsonl.gz`, and beside each its manifest.

A file appears whole or not at all. While something is still to be done about it, its manifest is
called `….pending.json`; a run that was killed is resumed from that name, or from a file that has
no manifest at all.
"""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from django.conf import settings

from webhooks.archive.errors import ArchiveDamaged, ArchiveMissing
from webhooks.archive.lines import Line, from_bytes, to_bytes

DATA = ".jsonl.gz"
MANIFEST = ".manifest.json"
PENDING = ".pending.json"
UNFINISHED = ".tmp"


def folder() -> Path:
    return Path(settings.ARCHIVE_DIR)


def path_of(name: str) -> Path:
    if Path(name).name != name:
        raise ArchiveMissing(f"{name!r} is not the name of an archive file")
    return folder() / name


def beside(name: str, suffix: str) -> Path:
    """The manifest of a data file, by either of its names."""
    return path_of(name.removesuffix(DATA) + suffix)


def data_files() -> list[str]:
    return sorted(path.name for path in folder().glob(f"*{DATA}"))


def make_folder() -> None:
    # What customers told their provider is nobody else's business.
    folder().mkdir(mode=0o700, parents=True, exist_ok=True)
    _folder_to_the_disk(folder().parent)


def remove_unfinished() -> None:
    """Only for who has the lease: then what this removes is nobody's any more."""
    for leftover in folder().glob(f"*{UNFINISHED}"):
        leftover.unlink()


def leftovers() -> list[str]:
    """The files that a run before this one did not get to the end of."""
    pending = {path.name.removesuffix(PENDING) + DATA for path in folder().glob(f"*{PENDING}")}
    alone = {name for name in data_files() if not beside(name, MANIFEST).exists()}
    return sorted(pending | alone)


def lines_of(path: Path) -> Iterator[Line]:
    """Every line, checked, to the end: gzip's own checksum is there."""
    try:
        with gzip.open(path) as stream:
            for data in stream:
                yield from_bytes(data)
    except FileNotFoundError as error:
        raise ArchiveMissing(f"{path.name} is not in {path.parent}") from error
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        raise ArchiveDamaged(f"{path.name} cannot be read: {type(error).__name__}") from error


def write_lines(name: str, lines: Iterable[Line]) -> Path:
    """To a temporary name, and on the disk when this returns. `lines` may be long."""
    temporary = path_of(name + UNFINISHED)
    with (
        open(temporary, "wb", opener=_private) as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed,
    ):
        for line in lines:
            packed.write(to_bytes(line))
        packed.close()
        _to_the_disk(raw.fileno())
        # So that who reads it back reads the disk, not what the system remembers of it.
        os.posix_fadvise(raw.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return temporary


def write_text(path: Path, text: str) -> None:
    temporary = path.with_name(path.name + UNFINISHED)
    with open(temporary, "w", opener=_private) as file:
        file.write(text)
        file.flush()
        _to_the_disk(file.fileno())
    rename(temporary, path)


def rename(old: Path, new: Path) -> None:
    old.replace(new)
    _folder_to_the_disk(new.parent)


def remove(path: Path) -> None:
    path.unlink(missing_ok=True)
    _folder_to_the_disk(path.parent)


def _folder_to_the_disk(path: Path) -> None:
    """A name in it is durable once the folder is."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        _to_the_disk(descriptor)
    finally:
        os.close(descriptor)


def _to_the_disk(descriptor: int) -> None:
    os.fsync(descriptor)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
