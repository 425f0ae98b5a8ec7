"""Everything on one machine, until Ctrl-C: what `make run` calls."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from config import banner, embedded, local_env
from config.children import run_until_one_ends

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = Path(os.environ.get("TOLLGATE_DATA_DIR") or BASE_DIR / ".data").resolve()
PYTHON = sys.executable


class CannotRun(Exception):
    """The message tells a person what to do."""


def main() -> int:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)  # the same as Ctrl-C
    try:
        with _only_run_of_this_copy():
            port = _free_port()
            with _servers() as server_urls:
                _run(port, server_urls)
    except KeyboardInterrupt:
        print("Stopped.")
        return 0
    except (CannotRun, embedded.EmbeddedServerError) as error:
        print(error, file=sys.stderr)
        return 1


@contextmanager
def _only_run_of_this_copy() -> Iterator[None]:
    DATA_DIR.mkdir(parents=True, exist_ok=True)
    with (DATA_DIR / "run.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotRun(
                "This copy runs already, in another terminal. A second copy needs a folder of its "
                "own (clone it again) and a port of its own (`make run PORT=8001`)."
            ) from None
        yield


def _free_port() -> int:
    text = os.environ.get("PORT") or "8000"
    if not (text.isdecimal() and 0 < int(text) < 65536):
        raise CannotRun(f"PORT must be a number from 1 to 65535, not {text!r}.")
    port = int(text)
    # A web server whose run was killed needs a moment to end.
    deadline = time.monotonic() + 5
    while (why_not := _why_port_is_taken(port)) and time.monotonic() < deadline:
        time.sleep(0.2)
    if why_not:
        raise CannotRun(
            f"Port {port} cannot be used ({why_not}). "
            f"Choose another one, for example: make run PORT={port % 65535 + 1}"
        )
    return port


def _why_port_is_taken(port: int) -> str | None:
    with socket.socket() as probe:
        # Connections that are only fading out do not count. The web server itself would not
        # notice another listener: it shares the port with whoever is willing.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((os.environ.get("HOST", "127.0.0.1"), port))
        except OSError as error:
            return error.strerror or str(error)
    return None


@contextmanager
def _servers() -> Iterator[dict[str, str]]:
    """Embedded servers for what the environment does not name."""
    needs_postgres = not os.environ.get("DATABASE_URL")
    needs_redis = not os.environ.get("REDIS_URL")
    try:
        urls = embedded.start(DATA_DIR, postgres=needs_postgres, redis=needs_redis)
        named = {"DATABASE_URL": urls.database_url, "REDIS_URL": urls.redis_url}
        yield {name: url for name, url in named.items() if url is not None}
    finally:
        # Those of a run that was killed, too: nobody else can be using them, as we hold the lock.
        embedded.stop(DATA_DIR)


def _run(port: int, server_urls: dict[str, str]) -> NoReturn:
    local = local_env.update(DATA_DIR, {"PORT": str(port), **server_urls})
    environment = {
        **local,
        **os.environ,
        **server_urls,
        "PORT": str(port),
        "PROMETHEUS_MULTIPROC_DIR": str(_emptied(DATA_DIR / "prometheus")),
        # Lines must show when they are written, although the output goes through a pipe.
        "PYTHONUNBUFFERED": "1",
    }
    for command in ("migrate", "create_demo_data"):
        _manage(command, environment)
    celery = [PYTHON, "-m", "celery", "--quiet", "-A", "config"]
    ended = run_until_one_ends(
        {
            "web": [PYTHON, "-m", "config.serve"],
            "worker": [*celery, "worker", "--concurrency=2", "--without-mingle"],
            "outbox": [PYTHON, "manage.py", "dispatch_outbox"],
            "beat": [*celery, "beat", f"--schedule={_emptied(DATA_DIR / 'beat') / 'schedule'}"],
        },
        environment=environment,
        while_waiting=banner.Announcement(port, DATA_DIR).make_once_ready,
    )
    raise CannotRun(
        f"{ended.name} ended by itself (code {ended.process.returncode}), so the rest was stopped. "
        f"Its last lines above say why."
    )


def _emptied(folder: Path) -> Path:
    # Both users of this leave files that mean nothing, or harm, once their writers are gone.
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _manage(command: str, environment: dict[str, str]) -> None:
    code = subprocess.run([PYTHON, "manage.py", command], env=environment, check=False).returncode
    if code != 0:
        raise CannotRun(f"`manage.py {command}` failed; the lines above say why.")


if __name__ == "__main__":
    sys.exit(main())
