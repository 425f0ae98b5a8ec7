"""Push for latency, sweep for safety; and a Redis that is away costs a request next to nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread
from time import monotonic, sleep
from uuid import uuid4

import pytest
from pytest_django import Settings

from billing.models import OutboxDelivery
from billing.outbox import dispatcher, waking
from billing.outbox.dispatcher import ThreadDied, serve
from billing.outbox.targets import all_targets
from tests.faults.own_servers import OwnRedis
from tests.faults.servers import free_port, wait_until
from tests.telling import receiver, target, tell


@pytest.fixture(autouse=True)
def as_in_a_new_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waking, "_client", None)
    monkeypatch.setattr(waking, "_not_before", 0.0)


def duration_of_wake() -> float:
    started = monotonic()
    waking.wake()
    return monotonic() - started


def test_wake_is_quick_when_redis_hangs_and_does_not_ask_again_at_once(settings: Settings):
    with socket.create_server(("127.0.0.1", 0), backlog=8) as black_hole:
        settings.REDIS_URL = f"redis://127.0.0.1:{black_hole.getsockname()[1]}/0"
        assert 0.1 < duration_of_wake() < 1
        assert duration_of_wake() < 0.02, "the breaker"


def test_wake_is_quick_when_nobody_is_there(settings: Settings):
    settings.REDIS_URL = f"redis://127.0.0.1:{free_port()}/0"
    assert duration_of_wake() < 0.3
    settings.REDIS_URL = "no-such-scheme://"
    waking._not_before = 0.0
    waking._client = None
    assert duration_of_wake() < 0.3
    settings.REDIS_URL = ""
    waking._not_before = 0.0
    assert duration_of_wake() < 0.3


def test_wake_tries_again_after_its_pause(tmp_path: Path, settings: Settings):
    redis = OwnRedis(tmp_path / "redis")
    try:
        settings.REDIS_URL = redis.url
        waking.wake()
        redis.freeze()
        assert duration_of_wake() < 0.6
        redis._process.resume()
        woken, stop = Event(), Event()
        Thread(target=waking.listen, args=[woken.set], kwargs={"stop": stop}, daemon=True).start()
        assert woken.wait(5), "that it listens is the first thing it hears"
        woken.clear()
        waking.wake()
        assert not woken.wait(0.3)
        waking._not_before = 0.0
        waking.wake()
        assert woken.wait(5)
        stop.set()
    finally:
        redis.remove()


@contextmanager
def dispatcher_running() -> Iterator[Thread]:
    stop, alive = Event(), Event()
    thread = Thread(target=serve, args=[all_targets()], kwargs={"stop": stop, "alive": alive.set})
    thread.start()
    try:
        assert alive.wait(10)
        yield thread
    finally:
        stop.set()
        thread.join(10)
        assert not thread.is_alive()


def all_delivered() -> bool:
    rows = OutboxDelivery.objects
    return rows.exists() and not rows.exclude(status="DELIVERED").exists()


@pytest.mark.django_db(transaction=True)
def test_a_commit_wakes_the_dispatcher_long_before_the_sweep(settings: Settings):
    settings.OUTBOX_SWEEP_EVERY_S = 60
    with receiver() as api:
        settings.OUTBOX_TARGETS = (target(url=api.url),)
        with dispatcher_running():
            sleep(0.3)
            tell(uuid4(), 3)
            wait_until(all_delivered, patience_s=5)
        assert len(api.requests) == 3


@pytest.mark.django_db(transaction=True)
def test_the_sweep_finds_what_nobody_was_woken_for(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    settings.OUTBOX_SWEEP_EVERY_S = 0.2
    monkeypatch.setattr(waking, "_not_before", monotonic() + 60)
    with dispatcher_running():
        tell(uuid4(), 3)
        wait_until(all_delivered, patience_s=5)


@pytest.mark.django_db(transaction=True)
def test_the_dispatcher_ends_when_one_of_its_threads_does(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(dispatcher.Line, "serve", lambda *_: None)
    with pytest.raises(ThreadDied, match="read-model"):
        serve(all_targets(), stop=Event(), alive=lambda: None)
