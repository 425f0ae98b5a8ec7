"""The short private folder that a copy's sockets live in, and where the copy remembers it."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from pathlib import Path

from config.embedded.errors import EmbeddedServerError

# sockaddr_un holds 108 bytes on Linux and 104 on macOS, the closing zero included.
_LONGEST_PATH_BYTES = 103
_LONGEST_NAME = ".s.PGSQL.5432.lock"


def private_socket_folder(data_dir: Path) -> Path:
    """The remembered folder while it is still ours, or else a new one.

    It is written down before any server starts, so that a start that is killed half-way leaves no
    server that cannot be found again.
    """
    known = _remembered(data_dir)
    if known is not None and _is_private(known):
        return known
    made = _new_folder()
    note = data_dir / "sockets"
    draft = note.with_suffix(".new")
    draft.write_text(str(made))
    draft.replace(note)
    return made


def remove_socket_folder(data_dir: Path) -> None:
    known = _remembered(data_dir)
    if known is not None and _is_private(known):
        shutil.rmtree(known, ignore_errors=True)
    (data_dir / "sockets").unlink(missing_ok=True)


def _remembered(data_dir: Path) -> Path | None:
    try:
        return Path((data_dir / "sockets").read_text())
    except FileNotFoundError:
        return None


def _is_private(folder: Path) -> bool:
    # The temporary folder is shared: once ours was cleaned away, anybody may have made another
    # one by the same name, with a server in it that only looks like ours.
    try:
        status = folder.lstat()
    except OSError:
        return False
    return (
        stat.S_ISDIR(status.st_mode)
        and status.st_uid == os.geteuid()
        and stat.S_IMODE(status.st_mode) == 0o700
    )


def _new_folder() -> Path:
    for parent in (tempfile.gettempdir(), "/tmp"):  # noqa: S108 (mkdtemp makes it private)
        try:
            folder = Path(tempfile.mkdtemp(prefix="tollgate-", dir=parent))
        except OSError:
            continue
        if len(os.fsencode(folder / _LONGEST_NAME)) <= _LONGEST_PATH_BYTES:
            return folder
        folder.rmdir()
    raise EmbeddedServerError(
        "No temporary folder with a short path can be written. "
        "Set TMPDIR to one, or set DATABASE_URL and REDIS_URL to servers of your own."
    )
