from __future__ import annotations

import signal
from threading import Event, Thread

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def stop_on_signals() -> Event:
    """Set once somebody asks this process to end. Call it before other threads are started.

    Not by a signal handler: that runs in the main thread, maybe while it holds the event's own
    lock, and would wait for it for ever.
    """
    stop = Event()
    signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)

    def wait() -> None:
        signal.sigwait(_SIGNALS)
        stop.set()

    Thread(target=wait, name="signals", daemon=True).start()
    return stop
