from __future__ import annotations

import fcntl
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from config.embedded.errors import EmbeddedServerError


@contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Wait for, then hold, the lock. The kernel drops it when the holder dies, however it dies."""
    try:
        file = path.open("a")
    except OSError as error:
        raise EmbeddedServerError(
            f"{path} cannot be written: {error}. Was this folder made by another user?"
        ) from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def wheel_folder(package: str) -> Path:
    """Where an installed package lies, found without importing it."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise EmbeddedServerError(
            f"The package {package} is not installed. Install requirements-dev.txt "
            f"(`make run` does), or set DATABASE_URL and REDIS_URL to servers of your own."
        )
    return Path(spec.origin).parent
