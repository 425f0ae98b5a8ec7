"""A target that is down for a while gets everything when it is back; the others are not delayed."""

from __future__ import annotations

from threading import Event, Thread
from time import monotonic, sleep

import pytest
from pytest_django import Settings

from billing.models import OutboxTarget
from billing.outbox.dispatcher import serve
from billing.outbox.targets import all_targets
from tests.faults.servers import free_port, wait_until
from tests.telling import Receiver, Request, in_order, receiver, statuses, target, tell_all

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def quick(settings: Settings) -> None:
    settings.OUTBOX_SWEEP_EVERY_S = 0.05
    settings.OUTBOX_RETRY_FIRST_S = 0.05
    settings.OUTBOX_RETRY_CAP_S = 0.2
    settings.OUTBOX_BREAKER_FIRST_S = 0.05
    settings.OUTBOX_BREAKER_CAP_S = 0.2


def _all_there(server: Receiver, number: int) -> bool:
    return len(set(server.seen)) == number


def _slowly(_: Request) -> tuple[int, dict[str, str]]:
    sleep(0.2)
    return 200, {}


def test_it_gets_everything_when_it_is_back_and_others_are_not_delayed(settings: Settings):
    port = free_port()
    with receiver() as good, receiver() as slow:
        slow.answer = _slowly
        settings.OUTBOX_TARGETS = (
            target("down", url=f"http://127.0.0.1:{port}/hook"),
            target("slow", url=slow.url),
            target("good", url=good.url),
        )
        stop = Event()
        options = {"stop": stop, "alive": lambda: None}
        thread = Thread(target=serve, args=[all_targets()], kwargs=options)
        thread.start()
        try:
            started = monotonic()
            tell_all(5, messages_each=3)
            wait_until(lambda: _all_there(good, 15), patience_s=10)
            took_s = monotonic() - started
            assert not _all_there(slow, 15)
            sleep(1)
            # It was left alone for most of the time, and nothing was given up.
            breaker = OutboxTarget.objects.get(name="down")
            assert 5 <= breaker.failures_in_a_row < 40
            assert set(statuses("down")) == {"PENDING"}
            with receiver(port) as down:
                wait_until(lambda: _all_there(down, 15), patience_s=10)
                wait_until(lambda: set(statuses("down")) == {"DELIVERED"}, patience_s=10)
                assert in_order(down.seen)
            wait_until(lambda: set(statuses("slow")) == {"DELIVERED"}, patience_s=10)
        finally:
            stop.set()
            thread.join(20)
        assert took_s < 3, "the slow one alone needs that long for its messages"
        assert in_order(good.seen)
        assert in_order(slow.seen)
        assert set(statuses("read-model")) == {"DELIVERED"}
