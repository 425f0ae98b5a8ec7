"""What the children do."""

from __future__ import annotations

import os
import signal
from collections import Counter
from threading import Barrier
from unittest import mock

from subscriptions.models import User
from tests.faults.kill_points import KillPoints
from webhooks import recovery, running
from webhooks.audit import Request
from webhooks.models import WebhookEvent
from webhooks.outcomes import Outcome
from webhooks.process import process
from webhooks.tasks import recover_task

FOR_S = 30


def recover_until_killed(kill_at: int | None) -> list[str]:
    """The points that were reached, if it lived."""
    points = KillPoints(kill_at)
    with points.installed():
        recovery.recover(for_s=FOR_S)
    return points.reached


def recover_and_die_of(external_payment_id: str) -> None:
    """One event has it that the process dies of it, every time."""

    def process_or_die(event: WebhookEvent, *, request: Request) -> Outcome:
        if event.external_payment_id == external_payment_id:
            os.kill(os.getpid(), signal.SIGKILL)
        return process(event, request=request)

    with mock.patch.object(running, "process", process_or_die):
        recovery.recover(for_s=FOR_S)


def sign_up_until_killed(email: str, kill_at: int | None) -> list[str]:
    """The points that were reached, if it lived."""
    points = KillPoints(kill_at)
    with points.installed():
        User.objects.create_user(email)
    return points.reached


def recover_together(start: Barrier, batch: int) -> Counter[str]:
    start.wait()
    return recovery.recover(for_s=FOR_S, batch=batch)


def run_the_task(start: Barrier) -> None:
    start.wait()
    recover_task()
