"""The web server: `python -m config.serve`."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any

from granian import Granian
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings

from config import metrics_listener
from config.parent_death import die_with_parent


def main() -> None:
    # Fresh interpreters: forking would copy the metrics thread's locks in whatever state they are.
    multiprocessing.set_start_method("spawn")
    metrics_listener.start_if_configured()
    Granian(
        "config.wsgi:application",
        address=os.environ.get("HOST", "127.0.0.1"),
        port=int(os.environ.get("PORT", "8000")),
        interface=Interfaces.WSGI,
        http=HTTPModes.http1,
        # A client that dawdles over its headers is dropped; bodies are the gate's business.
        http1_settings=HTTP1Settings(header_read_timeout=10_000),
        workers=int(os.environ.get("WEB_WORKERS", "2")),
        # Each of these holds one database connection.
        blocking_threads=int(os.environ.get("WEB_THREADS", "4")),
        backlog=1024,
        respawn_failed_workers=True,
        # A request has this long to end after SIGTERM; every timeout inside it is shorter.
        workers_kill_timeout=20,
        log_access=False,
    ).serve(target_loader=_load)


def _load(target: str) -> Callable[..., Any]:
    """Runs in each worker, before it takes requests."""
    die_with_parent()
    module, _, name = target.partition(":")
    application: Callable[..., Any] = getattr(import_module(module), name)
    return application


if __name__ == "__main__":
    main()
