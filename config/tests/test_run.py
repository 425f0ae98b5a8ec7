"""`python -m config.run` as a newcomer meets it: started, stopped, killed, started again."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from config import embedded
from config.embedded.processes import mark_of, processes_with

ROOT = Path(__file__).resolve().parent.parent.parent
_OUR_SETTINGS = re.compile("DATABASE_URL|REDIS_URL|SECRET_KEY|DEBUG|WEBHOOK_.*|PROMETHEUS_.*|HOST")
_READY = "Tollgate is running"


class Run:
    """One `config.run` with a data folder and a port of its own."""

    def __init__(self, data_dir: Path, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._log = data_dir.with_suffix(".log")
        environment = {k: v for k, v in os.environ.items() if not _OUR_SETTINGS.fullmatch(k)}
        with self._log.open("w") as log:
            self.process = psutil.Popen(
                [sys.executable, "-m", "config.run"],
                cwd=ROOT,
                env={**environment, "TOLLGATE_DATA_DIR": str(data_dir), "PORT": str(port)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Where the tests themselves run in the background, Ctrl-C is ignored from birth.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    @property
    def output(self) -> str:
        return self._log.read_text()

    def until_ready(self) -> Run:
        wait_until(lambda: _READY in self.output or self.process.poll() is not None, seconds=60)
        assert _READY in self.output, self.output
        return self

    def child(self, word: str) -> psutil.Process:
        (found,) = [c for c in self.process.children() if any(word in w for w in c.cmdline())]
        return found

    def descendants(self) -> list[psutil.Process]:
        return self.process.children(recursive=True)


def wait_until(condition: Callable[[], bool], *, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


def all_ended(processes: list[psutil.Process]) -> bool:
    return not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in processes)


def servers_of(data_dir: Path) -> list[psutil.Process]:
    mark = mark_of(data_dir)
    return [*processes_with(f"cluster_name={mark}"), *processes_with(f"redis-server {mark}")]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "späced data"


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        number: int = probe.getsockname()[1]
        return number


@pytest.fixture
def start(data_dir: Path, port: int) -> Iterator[Callable[[], Run]]:
    runs: list[Run] = []

    def start() -> Run:
        runs.append(Run(data_dir, port))
        return runs[-1]

    yield start
    for run in runs:
        if run.process.poll() is None:
            run.process.terminate()
            run.process.wait(60)
    embedded.stop(data_dir)


def test_it_serves_until_ctrl_c_and_leaves_nothing_behind(start: Callable[[], Run], data_dir: Path):
    run = start().until_ready()
    health = httpx.get(f"{run.url}/webhooks/health", trust_env=False)
    assert health.status_code == 200
    assert stat.S_IMODE((data_dir / "local.env").stat().st_mode) == 0o600
    begun = [*run.descendants(), *servers_of(data_dir)]
    assert len(servers_of(data_dir)) == 2

    run.process.send_signal(signal.SIGINT)

    assert run.process.wait(60) == 0, run.output
    assert all_ended(begun)
    assert "Traceback" not in run.output


def test_a_second_run_of_the_same_copy_is_refused(start: Callable[[], Run]):
    first = start().until_ready()
    second = start()
    assert second.process.wait(30) == 1
    assert "runs already" in second.output
    assert first.process.poll() is None


def test_a_killed_run_leaves_only_its_servers_which_the_next_one_uses(
    start: Callable[[], Run], data_dir: Path
):
    first = start().until_ready()
    secrets = (data_dir / "local.env").read_text()
    servers, children = servers_of(data_dir), first.descendants()
    first.process.kill()
    first.process.wait()

    second = start().until_ready()

    assert all_ended(children)
    assert servers_of(data_dir) == servers
    assert (data_dir / "local.env").read_text() == secrets
    second.process.terminate()
    assert second.process.wait(60) == 0
    assert all_ended(servers)


def test_when_one_dies_all_end_and_the_run_says_which(start: Callable[[], Run], data_dir: Path):
    run = start().until_ready()
    begun = [*run.descendants(), *servers_of(data_dir)]

    run.child("worker").kill()

    assert run.process.wait(60) == 1
    assert "worker ended by itself" in run.output
    assert all_ended(begun)


def test_a_port_that_is_taken_is_named_with_a_way_out(start: Callable[[], Run], port: int):
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
        other.listen()
        run = start()
        assert run.process.wait(30) == 1
    assert f"make run PORT={port + 1}" in run.output
