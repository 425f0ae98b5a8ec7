"""PostgreSQL refuses to run as root; here is who it runs as instead."""

from __future__ import annotations

import os
import pwd
import shutil
from pathlib import Path

from config.embedded.errors import EmbeddedServerError


def command_prefix(folder: Path) -> list[str]:
    """What to put before a command that works in `folder`, so that it does not run as root.

    The other user may not be able to enter the folders above `folder` or above the installed
    binaries (/root has mode 700). Their modes are not ours to change, so the command gets the one
    capability that looks past file modes instead.
    """
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise EmbeddedServerError(
            "PostgreSQL refuses to run as root, and `setpriv` (of util-linux), which runs it as "
            "another user, is missing. Install it, use an ordinary user, or set DATABASE_URL."
        )
    uid, gid = _user_for(folder)
    capability = "+dac_override"
    return [
        setpriv,
        f"--reuid={uid}",
        f"--regid={gid}",
        "--clear-groups",
        f"--inh-caps={capability}",
        f"--ambient-caps={capability}",
        # Without this, access(2), by which the programs look for one another, would disregard it.
        "--securebits=+no_setuid_fixup",
        "--",
    ]


def _user_for(folder: Path) -> tuple[int, int]:
    """The folder's owner; nobody, if there is no folder yet or root came to own it by a copy."""
    try:
        status = folder.stat()
    except FileNotFoundError:
        return _nobody()
    if status.st_uid != 0:
        return status.st_uid, status.st_gid
    uid, gid = _nobody()
    for path in (folder, *folder.rglob("*")):
        os.chown(path, uid, gid, follow_symlinks=False)
    return uid, gid


def _nobody() -> tuple[int, int]:
    user = pwd.getpwnam("nobody")
    return user.pw_uid, user.pw_gid
