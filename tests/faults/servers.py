"""Real web servers in processes of their own, and a client that calls them from many threads."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
from django.db import connection

from tests.faults.wsgi import KILL_AT, REACHED
from tests.sending import URL, sign, to_bytes

BASE_DIR = Path(__file__).resolve().parent.parent.parent
PATIENCE_S = 60
FAULTY = "tests.faults.serving"


class Web:
    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.log = log
        self._client = httpx.Client(
            base_url=f"http://127.0.0.1:{port}",
            # One connection per call: two calls must be able to meet in two workers.
            limits=httpx.Limits(max_keepalive_connections=0),
        )

    def send(
        self, payload: dict[str, Any] | bytes, *, kill_at: int | None = None, timeout_s: float = 30
    ) -> httpx.Response:
        body = to_bytes(payload)
        headers = {"Content-Type": "application/json", **sign(body)}
        if kill_at is not None:
            headers[KILL_AT] = str(kill_at)
        return self._client.post(URL, content=body, headers=headers, timeout=timeout_s)

    def send_all(self, payloads: Iterable[dict[str, Any]], *, at_once: int) -> list[httpx.Response]:
        with ThreadPoolExecutor(at_once) as threads:
            return list(threads.map(self.send, payloads))

    def points_of(self, payload: dict[str, Any]) -> list[str]:
        """Where a web server that gets this delivery can be killed."""
        answer = self.send(payload)
        assert answer.status_code == 200, answer.text
        points: list[str] = json.loads(answer.headers[REACHED])
        return points

    def get(self, path: str) -> httpx.Response:
        return self._client.get(path)

    def workers(self) -> list[int]:
        """The processes that take requests."""
        return [child.pid for child in psutil.Process(self.process.pid).children() if _works(child)]

    def wait_until_it_answers(self) -> None:
        def answers() -> bool:
            with suppress(httpx.TransportError):
                return self.get("/webhooks/health").status_code == 200
            assert self.process.poll() is None, f"it ended:\n{self.log.read_text()}"
            return False

        wait_until(answers)

    def kill(self) -> None:
        kill_group(self.process)


@contextmanager
def web_server(folder: Path, *, module: str = "config.serve", **environment: str) -> Iterator[Web]:
    web = start_web_server(folder, module=module, **environment)
    try:
        web.wait_until_it_answers()
        yield web
    finally:
        web.kill()


def start_web_server(folder: Path, *, module: str = "config.serve", **environment: str) -> Web:
    """On a free port, with the test database of this worker unless told otherwise."""
    port = free_port()
    log = folder / f"web-{port}.log"
    metrics = folder / f"prometheus-{port}"
    metrics.mkdir()
    values = {
        "DATABASE_URL": test_database_url(),
        "PROMETHEUS_MULTIPROC_DIR": str(metrics),
        "PORT": str(port),
        "WEB_WORKERS": "1",
        **environment,
    }
    return Web(start_process(["-m", module], log, values), port, log)


def start_process(
    arguments: list[str], log: Path, environment: dict[str, str]
) -> subprocess.Popen[bytes]:
    """A Python process in a group of its own."""
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, *arguments],
            cwd=BASE_DIR,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """The process and all it started, at once."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def test_database_url() -> str:
    url = urlsplit(os.environ["DATABASE_URL"])
    return url._replace(path=f"/{connection.settings_dict['NAME']}").geturl()


test_database_url.__test__ = False  # type: ignore[attr-defined]


def _works(child: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):  # a zombie is one, too
        return any("spawn_main" in word for word in child.cmdline())
    return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(condition: Callable[[], object], *, patience_s: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{condition} is still not so")
        time.sleep(0.03)
