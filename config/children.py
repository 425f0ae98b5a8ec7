"""Runs several commands as one: their output side by side, and when one ends, all end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from config.parent_death import die_with_parent

# Celery may be in the middle of a task; what is lost with it is picked up again by recovery.
_STOP_PATIENCE_S = 25


@dataclass(frozen=True)
class Child:
    name: str
    process: subprocess.Popen[str]


def run_until_one_ends(
    commands: Mapping[str, list[str]],
    *,
    environment: Mapping[str, str],
    while_waiting: Callable[[], None],
) -> Child:
    """Returns the child that ended of itself; a KeyboardInterrupt passes through. All are ended."""
    children: list[Child] = []
    try:
        for name, command in commands.items():
            children.append(_start(name, command, environment))
        # Threads only after the last fork.
        for child in children:
            threading.Thread(target=_show_output, args=[child], daemon=True).start()
        while True:
            for child in children:
                if child.process.poll() is not None:
                    return child
            while_waiting()
            time.sleep(0.2)
    finally:
        _end(children)


def _start(name: str, command: list[str], environment: Mapping[str, str]) -> Child:
    return Child(
        name,
        subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            # Ctrl-C is for us alone; we tell the children, in a way that each understands.
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 (no threads yet)
        ),
    )


def _show_output(child: Child) -> None:
    output = child.process.stdout
    if output is not None:
        for line in output:
            sys.stdout.write(f"{child.name:<6} | {line}")
            sys.stdout.flush()


def _end(children: list[Child]) -> None:
    # A second Ctrl-C would only leave something running: the patience below is limited anyway.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    for child in children:
        child.process.terminate()
    deadline = time.monotonic() + _STOP_PATIENCE_S
    for child in children:
        try:
            child.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            sys.stderr.write(f"{child.name} does not end: killing it.\n")
        # What it left behind, too: its session is its own, so this reaches nobody else.
        with suppress(ProcessLookupError):
            os.killpg(child.process.pid, signal.SIGKILL)
        child.process.wait()
