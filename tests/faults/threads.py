"""Several threads, each with its own database connection, that can be made to meet."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier, Lock
from typing import Any

import psycopg
from django.db import connection

from tests.faults.servers import test_database_url, wait_until

_BLOCKED = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


def at_once(
    *calls: Callable[[], Any], expected: type[Exception] | tuple[type[Exception], ...] = ()
) -> list[Any]:
    """Call all of them at the same moment; what each returned, or the expected exception."""
    start = Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        try:
            connection.ensure_connection()
            start.wait()
            return call()
        except expected as error:
            return error
        finally:
            connection.close()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(run, calls))


class Meeting:
    """Makes an interleaving certain: whoever arrives goes on only when each of the others has
    arrived too, or waits in PostgreSQL for a lock that somebody here holds.

    So the same test shows both worlds: without the lock all of them arrive having read the same;
    with it they come one after the other.
    """

    def __init__(self, parties: int) -> None:
        self._parties = parties
        self._arrived = 0
        self._count = Lock()

    def wait(self) -> None:
        with self._count:
            self._arrived += 1
        with psycopg.connect(test_database_url(), autocommit=True) as observer:
            wait_until(lambda: self._arrived + _blocked(observer) >= self._parties, patience_s=10)

    def after(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, with a meeting once it is done."""

        def then_meet(*args: Any, **kwargs: Any) -> Any:
            result = function(*args, **kwargs)
            self.wait()
            return result

        return then_meet


def _blocked(observer: psycopg.Connection[Any]) -> int:
    row = observer.execute(_BLOCKED).fetchone()
    return int(row[0]) if row else 0
