"""kill -9 of the web server at every step of the walk; then the provider delivers again."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from billing.models import Payment
from subscriptions.models import Plan, User
from tests.faults.kill_points import AFTER_COMMIT, BEFORE_COMMIT
from tests.faults.servers import FAULTY, Web, start_web_server, wait_until, web_server
from tests.faults.truths import assert_applied_once, assert_periods_adjacent
from tests.faults.wsgi import BEFORE_ANSWER
from tests.sending import paid
from webhooks.models import WebhookEvent

pytestmark = pytest.mark.django_db(transaction=True)

# So that the next victim is up when the last one is dead.
STARTED_AHEAD = 3


def _victims(folder: Path) -> Iterator[Web]:
    """Web servers that answer, one after the other, each to be killed."""
    with ExitStack() as stack:
        waiting: deque[Web] = deque()
        while True:
            while len(waiting) < STARTED_AHEAD:
                victim = start_web_server(folder, module=FAULTY)
                stack.callback(victim.kill)
                waiting.append(victim)
            victim = waiting.popleft()
            victim.wait_until_it_answers()
            yield victim


def _kill_at_every_point(folder: Path, make_ready: Callable[[Web], dict[str, Any]]) -> None:
    """`make_ready` returns the next delivery."""
    with web_server(folder, module=FAULTY) as healthy:
        points = healthy.points_of(make_ready(healthy))
        # The walk has its known shape; else nothing below would be about it.
        assert "webhooks_webhookevent" in points[0]
        assert points[-3:] == [BEFORE_COMMIT, AFTER_COMMIT, BEFORE_ANSWER]
        assert len(points) > 8
        for (number, point), victim in zip(enumerate(points, 1), _victims(folder), strict=False):
            payload = make_ready(healthy)
            was_stored = _is_stored(payload)
            with pytest.raises(httpx.TransportError):
                victim.send(payload, kill_at=number)
            assert victim.process.wait(10) == -signal.SIGKILL
            # Behind the first statement the event is safe, whatever happens.
            assert _is_stored(payload) == (was_stored or number > 1), point

            answer = healthy.send(payload)

            result = "duplicate" if point in {AFTER_COMMIT, BEFORE_ANSWER} else "processed"
            assert (answer.status_code, answer.json()["status"]) == (200, result), point
            assert_applied_once(payload)


def _is_stored(payload: dict[str, Any]) -> bool:
    return WebhookEvent.objects.filter(external_event_id=payload["event_id"]).exists()


def test_it_applies_once_when_the_web_server_is_killed_at_any_step(
    buyer: User, monthly: Plan, tmp_path: Path
) -> None:
    _kill_at_every_point(tmp_path, lambda _: paid())

    assert_periods_adjacent(buyer, number=Payment.objects.count())


def test_it_applies_once_when_the_web_server_is_killed_while_a_parked_event_is_redelivered(
    monthly: Plan, tmp_path: Path
) -> None:
    def park(healthy: Web) -> dict[str, Any]:
        payload = paid(email=f"user{User.objects.count()}@example.com")
        assert healthy.send(payload).json()["status"] == "unlinked"
        # In bulk, so that no signal links the payment.
        User.objects.bulk_create([User(email=payload["email"])])
        return payload

    _kill_at_every_point(tmp_path, park)

    for user in User.objects.all():
        assert_periods_adjacent(user, number=1)


def test_it_goes_on_by_itself_when_one_of_its_workers_is_killed(
    buyer: User, monthly: Plan, tmp_path: Path
) -> None:
    with web_server(tmp_path) as web:
        (worker,) = web.workers()
        os.kill(worker, signal.SIGKILL)
        wait_until(lambda: worker not in web.workers() and web.workers())
        web.wait_until_it_answers()

        assert web.send(paid()).json()["status"] == "processed"
