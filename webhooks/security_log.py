"""What an operator of the door must hear of, in a volume that an attacker cannot drive up."""

import threading
import time
from collections import defaultdict
from enum import StrEnum
from typing import Any

import structlog

from webhooks import metrics

LINES_PER_MINUTE = 60
logger = structlog.get_logger("security")


class Kind(StrEnum):
    INVALID_SIGNATURE = "invalid_signature"
    TIMESTAMP_EXPIRED = "timestamp_expired"
    AMOUNT_MISMATCH = "amount_mismatch"
    CONFLICT = "conflict"


class _Budget:
    """So many lines of a kind a minute and process; the rest is counted and told once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._minute = 0
        self._used: dict[Kind, int] = defaultdict(int)

    def take(self, kind: Kind) -> tuple[bool, dict[Kind, int]]:
        """Whether a line may be written, and what the minute before had to leave out."""
        with self._lock:
            left_out: dict[Kind, int] = {}
            minute = int(time.monotonic() // 60)
            if minute != self._minute:
                left_out = {
                    kind: used - LINES_PER_MINUTE
                    for kind, used in self._used.items()
                    if used > LINES_PER_MINUTE
                }
                self._minute, self._used = minute, defaultdict(int)
            self._used[kind] += 1
            return self._used[kind] <= LINES_PER_MINUTE, left_out


_budget = _Budget()


def note(kind: Kind, **fields: Any) -> None:
    metrics.security_events.labels(kind).inc()
    may_write, left_out = _budget.take(kind)
    for other, number in left_out.items():
        logger.warning("security_lines_left_out", kind=other, number=number)
    if may_write:
        logger.warning(kind.value, **fields)
