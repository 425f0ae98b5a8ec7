"""A PostgreSQL and a Redis that a test may stop, kill and freeze without harm to the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import psycopg
from redis import Redis

from config import embedded
from tests.faults.servers import BASE_DIR, wait_until

BUYER = "demo@example.com"  # of create_demo_data


class OwnPostgres:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.start()

    def start(self) -> None:
        """On the same socket as before."""
        url = embedded.start(self._folder, redis=False).database_url
        assert url is not None
        self.url = url
        with psycopg.connect(url) as connection:
            main = psutil.Process(connection.info.backend_pid).parent()
        assert main is not None
        self._main = main

    def stop(self) -> None:
        _end(self._main, signal.SIGINT)

    def kill(self) -> None:
        """kill -9 of all its processes at once: each leads a group of its own."""
        for process in [self._main, *self._main.children(recursive=True)]:
            _end(process, signal.SIGKILL)

    def remove(self) -> None:
        embedded.stop(self._folder)

    def migrate(self) -> None:
        for command in ("migrate", "create_demo_data"):
            subprocess.run(
                [sys.executable, "manage.py", command, "--verbosity=0"],
                cwd=BASE_DIR,
                env={**os.environ, "DATABASE_URL": self.url, "DEBUG": "1"},
                stdout=subprocess.DEVNULL,
                check=True,
            )

    def read(self, query: str, *params: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.url) as connection:
            return connection.execute(query.encode(), params).fetchall()


class OwnRedis:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.start()

    def start(self) -> None:
        """On the same socket as before, and empty: it keeps nothing on disk."""
        url = embedded.start(self._folder, postgres=False).redis_url
        assert url is not None
        self.url = url
        with Redis.from_url(url) as client:
            self._process = psutil.Process(client.info("server")["process_id"])

    def stop(self) -> None:
        _end(self._process, signal.SIGTERM)

    def kill(self) -> None:
        _end(self._process, signal.SIGKILL)

    def freeze(self) -> None:
        """It still takes connections, and never answers: a black hole."""
        self._process.suspend()

    def remove(self) -> None:
        with suppress(psutil.NoSuchProcess):
            self._process.resume()
        embedded.stop(self._folder)


def _end(process: psutil.Process, signal_number: signal.Signals) -> None:
    with suppress(psutil.NoSuchProcess):
        process.send_signal(signal_number)
    wait_until(lambda: _has_ended(process))


def _has_ended(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        # Where no init collects zombies, they stay.
        return process.status() == psutil.STATUS_ZOMBIE
    return True
