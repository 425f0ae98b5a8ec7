"""The one function that sends what is due: a wake-up, the sweep and `--once` all call it."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Event
from time import monotonic

import structlog
from django.db import Error as DatabaseError

from billing.outbox import deliveries
from billing.outbox.deliveries import Attempt
from billing.outbox.holding import Hold, take
from billing.outbox.sinks import Refused, Sink, Unreachable
from billing.outbox.targets import Target

logger = structlog.get_logger("billing")

BATCH = 100
NEVER = Event()


@dataclass
class Pace:
    """At most so many messages a second, evenly."""

    rate: int
    _not_before: float = field(default=0.0, init=False)

    def wait(self, stop: Event) -> None:
        if self.rate:
            now = monotonic()
            stop.wait(max(0.0, self._not_before - now))
            self._not_before = max(now, self._not_before) + 1 / self.rate


def dispatch(
    target: Target, sink: Sink, *, pace: Pace | None = None, stop: Event = NEVER
) -> Counter[str]:
    """Send what is due, in order per key, until nothing is due, the target is not worth trying,
    or `stop`. Counts what was delivered, failed, dead."""
    results: Counter[str] = Counter()
    # Looked at first, so that an idle dispatcher writes nothing.
    if not deliveries.due(target.name, limit=1):
        return results
    # Longer than the longest try (connect, write, read), so that it does not lose us the target.
    hold = take(target.name, seconds=3 * target.timeout_s + 10)
    if hold is None:
        results["held_back"] += 1
        return results
    try:
        _send_all(target, sink, hold, results, pace=pace or Pace(target.rate), stop=stop)
    finally:
        # Without the database the hold ends by time.
        with suppress(DatabaseError):
            hold.release()
    return results


def _send_all(
    target: Target, sink: Sink, hold: Hold, results: Counter[str], *, pace: Pace, stop: Event
) -> None:
    began = True
    # What is due and cannot be begun is not ours any more.
    while began and (due := deliveries.due(target.name, limit=BATCH)):
        began = False
        for one in due:
            pace.wait(stop)
            if stop.is_set() or not hold.keep():
                return
            if deliveries.exhausted(one.attempts):
                results["dead"] += deliveries.give_up(one)
            elif attempt := deliveries.begin(one, hold):
                if not _try(attempt, sink, hold, results):
                    return
            else:
                continue
            began = True


def _try(attempt: Attempt, sink: Sink, hold: Hold, results: Counter[str]) -> bool:
    """Whether to go on with the next message. No transaction is open while it is sent."""
    try:
        sink.send(attempt.message)
    except Unreachable as error:
        # A probe that fails says nothing about its message.
        counts = not hold.is_probe
        open_now = hold.failed(retry_after_s=error.retry_after_s)
        _failed(attempt, str(error), hold, results, counts=counts)
        return not open_now
    except Refused as error:
        hold.closed()
        _failed(attempt, str(error), hold, results, counts=True)
    except Exception as error:
        # A message that nobody can send must not stop those of other payments.
        logger.exception("outbox_sink_failed", target=hold.target)
        _failed(attempt, type(error).__name__, hold, results, counts=True)
    else:
        hold.closed()
        results["delivered"] += deliveries.delivered(attempt)
    return True


def _failed(
    attempt: Attempt, error: str, hold: Hold, results: Counter[str], *, counts: bool
) -> None:
    dead = deliveries.failed(attempt, error, counts=counts)
    results["dead" if dead else "failed"] += 1
    message = attempt.message
    (logger.error if dead else logger.warning)(
        "outbox_message_dead" if dead else "outbox_attempt_failed",
        target=hold.target,
        message_id=str(message.id),
        type=message.type,
        key=str(message.key),
        seq=message.seq,
        attempt=attempt.number,
        error=error,
        duration_ms=attempt.duration_ms,
    )
