"""Takes incoming messages one by one. One counts as done at its source only after the database has
it, so a death in between brings it again, and it is a duplicate."""

from __future__ import annotations

from collections import Counter
from threading import Event
from time import monotonic

import structlog
from django.db import connection

from billing.outbox.incoming import DATABASE_AWAY, Incoming, Taken, take
from billing.outbox.sources import Source, SourceAway

logger = structlog.get_logger("billing")

_PAUSE_S = 2.0
_MAX_PAUSE_S = 30.0
# How long `once` waits for a source to say that there is nothing more.
_PATIENCE_S = 30.0


def consume(source: Source, *, stop: Event, once: bool = False) -> Counter[str]:
    """Until `stop`, or with `once` until everything that is there was taken."""
    results: Counter[str] = Counter()
    give_up_at = monotonic() + _PATIENCE_S
    while not stop.is_set():
        try:
            batch = source.next()
        except SourceAway as error:
            if once:
                raise
            logger.warning("payment_source_away", error=str(error))
            stop.wait(_PAUSE_S)
            continue
        for incoming in batch:
            taken = _take_patiently(incoming, stop, once=once)
            if taken is None:
                return results
            results[taken] += 1
            _done(source, incoming)
        if batch:
            give_up_at = monotonic() + _PATIENCE_S
        elif once and source.is_drained():
            break
        elif once and monotonic() > give_up_at:
            raise SourceAway("it does not say whether there is more")
    return results


def _take_patiently(incoming: Incoming, stop: Event, *, once: bool) -> Taken | None:
    """None: told to stop before the database was back."""
    pause_s = _PAUSE_S
    while not stop.is_set():
        try:
            taken = take(incoming)
        except DATABASE_AWAY:
            connection.close()
            if once:
                raise
            logger.exception("payment_message_waits", position=incoming.position)
            stop.wait(pause_s)
            pause_s = min(pause_s * 2, _MAX_PAUSE_S)
        else:
            logger.info("payment_message", position=incoming.position, result=taken)
            return taken
    return None


def _done(source: Source, incoming: Incoming) -> None:
    try:
        source.done(incoming)
    except SourceAway as error:
        # It comes again, and is a duplicate then.
        logger.warning("payment_message_not_acknowledged", error=str(error))
