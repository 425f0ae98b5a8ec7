from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil


def mark_of(data_dir: Path) -> str:
    """A word that both servers put on the command lines of all their processes."""
    return "tollgate-" + hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:16]


def processes_with(beginning: str) -> Iterator[psutil.Process]:
    """The processes that have a word of this beginning on their command line.

    Not by a pid file: after a kill -9 that stays behind, and by now its number may be anybody's.
    """
    for process in psutil.process_iter(["cmdline"]):
        if any(word.startswith(beginning) for word in process.info["cmdline"] or ()):
            yield process


def end(process: psutil.Process, *, polite_signal: int, patience_s: float = 30) -> None:
    for signal_number in (polite_signal, signal.SIGKILL):
        try:
            process.send_signal(signal_number)
        except psutil.NoSuchProcess:
            return
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline:
            if not _runs(process):
                return
            time.sleep(0.02)


def _runs(process: psutil.Process) -> bool:
    # A zombie has ended; in a container without a real init nobody may ever collect it.
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
