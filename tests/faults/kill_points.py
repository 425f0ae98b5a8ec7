"""Places where a process can be made to die: before every statement, around every COMMIT."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connection

BEFORE_COMMIT = "before COMMIT"
AFTER_COMMIT = "after COMMIT"


class KillPoints:
    """Counts the points that are reached, and has the process killed at one of them.

    Run once without `kill_at` to learn which points there are: a new statement gets its own.
    """

    def __init__(self, kill_at: int | None, *, whole_group: bool = False) -> None:
        self.reached: list[str] = []
        self._kill_at = kill_at
        self._whole_group = whole_group

    @contextmanager
    def installed(self) -> Iterator[None]:
        driver: Any = connection
        commit = driver._commit
        driver._commit = self._around(commit)
        try:
            with connection.execute_wrapper(self._before_statement):
                yield
        finally:
            driver._commit = commit

    def reach(self, name: str) -> None:
        self.reached.append(name)
        if len(self.reached) == self._kill_at:
            victim = 0 if self._whole_group else os.getpid()
            (os.killpg if self._whole_group else os.kill)(victim, signal.SIGKILL)
            signal.pause()  # The signal may take a moment; nothing may happen in it.

    def _before_statement(
        self, execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any
    ) -> Any:
        self.reach(f"before {_shortened(sql)}")
        return execute(sql, params, many, context)

    def _around(self, commit: Callable[[], Any]) -> Callable[[], Any]:
        def watched() -> Any:
            self.reach(BEFORE_COMMIT)
            result = commit()
            self.reach(AFTER_COMMIT)
            return result

        return watched


def _shortened(sql: str) -> str:
    words = re.findall(r"[\w.]+", sql)
    tables = [word for word in words if re.match(r"(webhooks|billing|subscriptions)_\w+$", word)]
    return " ".join([words[0], *tables[:1]])
