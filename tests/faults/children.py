"""Real processes that run one job each, and may die of it. What they are forked from has no
connections and no threads, so that a child is like a worker that has just started."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from typing import Any

from django.db import connection

# Before a job's module, which has models in it, is imported in the child.
from tests.faults import booted

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([booted.__name__])
_PATIENCE_S = 60


@dataclass
class Child:
    process: ForkServerProcess
    answers: Connection

    def result(self) -> Any:
        """What the job returned."""
        value = self.answers.recv() if self.answers.poll(_PATIENCE_S) else None
        assert self.exit_code() == 0
        return value

    def exit_code(self) -> int | None:
        self.process.join(_PATIENCE_S)
        self.process.kill()
        self.answers.close()
        return self.process.exitcode


def start(job: Callable[..., Any], *args: Any) -> Child:
    """`job` is a function of a module, here in this folder or in the product."""
    receiver, sender = _context.Pipe(duplex=False)
    database = connection.settings_dict["NAME"]
    process = _context.Process(target=_run, args=[database, sender, job, args], daemon=True)
    process.start()
    sender.close()
    return Child(process, receiver)


def _run(database: str, sender: Connection, job: Callable[..., Any], args: tuple[Any, ...]) -> None:
    connection.settings_dict["NAME"] = database
    sender.send(job(*args))
