"""The process that dispatches: a thread per target, so that a slow one delays nobody else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event, Thread
from typing import TypeVar

import structlog
from django.conf import settings
from django.db import Error as DatabaseError
from django.db import connection

from billing.outbox.dispatching import Pace, dispatch
from billing.outbox.sinks import Sink, open_sink
from billing.outbox.targets import Target
from billing.outbox.waking import listen

T = TypeVar("T")
logger = structlog.get_logger("billing")

_LOOK_AFTER_THREADS_EVERY_S = 1.0
# Threads end after the message they are sending; a process that is killed loses nothing.
_STOP_PATIENCE_S = 20


@dataclass
class Line:
    """What a thread needs to serve one target."""

    target: Target
    sink: Sink
    woken: Event = field(default_factory=Event)

    def serve(self, stop: Event) -> None:
        pace = Pace(self.target.rate)
        while not stop.is_set():
            # Before looking: what is written from now on wakes us again.
            self.woken.clear()
            self._look(pace, stop)
            self.woken.wait(settings.OUTBOX_SWEEP_EVERY_S)

    def _look(self, pace: Pace, stop: Event) -> None:
        try:
            connection.close_if_unusable_or_obsolete()
            results = dispatch(self.target, self.sink, pace=pace, stop=stop)
        except DatabaseError:
            logger.exception("outbox_database_failed", target=self.target.name)
            connection.close()
        else:
            if results["delivered"] or results["dead"]:
                logger.info("outbox_dispatched", target=self.target.name, **results)


class ThreadDied(Exception):
    """Nobody serves a target any more."""


def serve(targets: Sequence[Target], *, stop: Event, alive: Callable[[], None]) -> None:
    """Until `stop`. `alive` is called about once a second, as long as every thread lives."""
    lines = [Line(target, open_sink(target)) for target in targets]

    def wake_all() -> None:
        for line in lines:
            line.woken.set()

    threads = [
        Thread(target=_in_thread, args=[line.serve, stop], name=line.target.name, daemon=True)
        for line in lines
    ]
    ears = Thread(target=listen, args=[wake_all], kwargs={"stop": stop}, daemon=True)
    for thread in (*threads, ears):
        thread.start()
    try:
        while not stop.wait(_LOOK_AFTER_THREADS_EVERY_S):
            if dead := [thread.name for thread in threads if not thread.is_alive()]:
                raise ThreadDied(f"the thread of {', '.join(dead)} ended")
            alive()
    finally:
        stop.set()
        wake_all()
        for thread in threads:
            thread.join(_STOP_PATIENCE_S)
        for line in lines:
            line.sink.close()


def dispatch_once(targets: Sequence[Target]) -> dict[str, Counter[str]]:
    """What is due now, to all of them at once."""
    with ThreadPoolExecutor(max(1, len(targets))) as pool:
        counted = pool.map(lambda target: _in_thread(_dispatch_to, target), targets)
        return {target.name: results for target, results in zip(targets, counted, strict=True)}


def _dispatch_to(target: Target) -> Counter[str]:
    sink = open_sink(target)
    try:
        return dispatch(target, sink)
    finally:
        sink.close()


def _in_thread(work: Callable[..., T], *args: object) -> T:
    """A thread takes its database connection with it."""
    try:
        return work(*args)
    finally:
        connection.close()
