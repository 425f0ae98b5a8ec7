"""kill -9 of the dispatcher: every message arrives, in order per payment."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.conf import settings as django_settings
from pytest_django import Settings
from redis import Redis

from billing.models import OutboxDelivery
from tests.faults import children, outbox_jobs
from tests.faults.outbox_jobs import AFTER_SEND, BEFORE_SEND, stream_target
from tests.faults.servers import kill_group, start_process, test_database_url, wait_until
from tests.telling import SECRET, in_order, make_due, receiver, statuses, target, tell

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def redis() -> Iterator[Redis]:
    with Redis.from_url(django_settings.REDIS_URL, decode_responses=True) as client:
        yield client


def _seen(redis: Redis, stream: str) -> list[tuple[UUID, int]]:
    entries: Any = redis.xrange(stream)
    return [(UUID(fields["key"]), int(fields["seq"])) for _, fields in entries]


def test_every_message_arrives_in_order_when_the_dispatcher_is_killed_at_any_point(
    redis: Redis, settings: Settings
):
    stream = f"told-{uuid4()}"
    settings.OUTBOX_TARGETS = (stream_target(stream),)

    def tell_some() -> set[tuple[UUID, int]]:
        first, second = uuid4(), uuid4()
        tell(first, 2)
        tell(second)
        redis.delete(stream)
        return {(first, 1), (first, 2), (second, 1)}

    tell_some()
    points = children.start(outbox_jobs.dispatch_until_killed, stream, None).result()
    # Look, take, look, then for each message begin, send, mark; let go.
    assert points.count(BEFORE_SEND) == points.count(AFTER_SEND) == 3
    assert len(points) > 15
    repeats = 0
    for number, point in enumerate(points, 1):
        told = tell_some()
        killed = children.start(outbox_jobs.dispatch_until_killed, stream, number)
        assert killed.exit_code() == -signal.SIGKILL, point
        make_due()

        children.start(outbox_jobs.dispatch_until_killed, stream, None).result()

        seen = _seen(redis, stream)
        assert set(seen) == told, point
        assert in_order(seen), point
        assert len(seen) <= len(told) + 1, point
        repeats += len(seen) > len(told)
        assert set(statuses("bus")) == {"DELIVERED"}, point
    # Killed between sending and marking, for each of the three: after the send, before the mark.
    assert repeats == 6
    redis.delete(stream)


def test_a_killed_dispatcher_leaves_the_rest_to_the_next_which_ends_when_asked(
    settings: Settings, tmp_path: Path
):
    with receiver() as api:
        settings.OUTBOX_TARGETS = (target(url=api.url),)
        key = uuid4()
        tell(key, 30)
        environment = {
            "DATABASE_URL": test_database_url(),
            "OUTBOX_TARGETS": "crm:http",
            "OUTBOX_CRM_URL": api.url,
            "OUTBOX_CRM_SECRET": SECRET,
            "OUTBOX_CRM_RATE": "100",
        }
        log = tmp_path / "dispatcher.log"
        command = ["manage.py", "dispatch_outbox", "--target=crm"]
        heartbeat = tmp_path / "heartbeat"
        first = start_process(command, log, environment)
        try:
            wait_until(lambda: len(api.requests) >= 5, patience_s=20)
        finally:
            kill_group(first)
        arrived = len(api.requests)
        assert arrived < 30
        make_due()

        second = start_process([*command, f"--heartbeat={heartbeat}"], log, environment)
        try:
            wait_until(lambda: statuses() == ["DELIVERED"] * 30, patience_s=20)
            wait_until(heartbeat.exists, patience_s=5)
            second.send_signal(signal.SIGTERM)
            assert second.wait(10) == 0, log.read_text()
        finally:
            kill_group(second)
    assert "Stopped." in log.read_text()
    assert "Traceback" not in log.read_text()
    assert in_order(api.seen)
    assert {seq for _, seq in api.seen} == set(range(1, 31))
    assert not OutboxDelivery.objects.filter(target="read-model").exclude(status="PENDING").exists()
