"""Redis only makes things faster: it may stop, hang or forget at any moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from subscriptions.models import Plan, User
from tests.factories import UserFactory
from tests.faults.own_servers import OwnRedis
from tests.faults.recovering import recover_in_a_process
from tests.faults.servers import (
    Web,
    kill_group,
    start_process,
    test_database_url,
    wait_until,
    web_server,
)
from tests.faults.truths import assert_applied_once, store_and_lose
from tests.sending import paid
from webhooks.models import WebhookEvent

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[OwnRedis]:
    server = OwnRedis(tmp_path / "redis")
    try:
        yield server
    finally:
        server.remove()


@pytest.fixture
def web(redis: OwnRedis, tmp_path: Path) -> Iterator[Web]:
    with web_server(tmp_path, REDIS_URL=redis.url) as server:
        yield server


@pytest.mark.parametrize("fault", ["stop", "freeze"])
@pytest.mark.usefixtures("buyer", "monthly")
def test_it_takes_and_recovers_payments_while_redis_is_away(
    fault: str, redis: OwnRedis, web: Web, tmp_path: Path
) -> None:
    taken, parked, lost = paid(), paid(email="new@example.com"), paid()
    getattr(redis, fault)()

    assert web.send(taken, timeout_s=5).json()["status"] == "processed"
    assert web.send(taken, timeout_s=5).json()["status"] == "duplicate"
    assert web.send(parked, timeout_s=5).json()["status"] == "unlinked"
    UserFactory.create(email="new@example.com")
    store_and_lose(lost)
    recover_in_a_process(tmp_path, REDIS_URL=redis.url)

    for payload in (taken, parked, lost):
        assert_applied_once(payload)


@contextmanager
def _celery(folder: Path, redis: OwnRedis) -> Iterator[None]:
    """A worker and a beat, as `make run` starts them, but with a quick beat."""
    environment = {
        "DATABASE_URL": test_database_url(),
        "REDIS_URL": redis.url,
        "WEBHOOK_SWEEP_EVERY_S": "1",
    }
    log = folder / "celery.log"
    celery = ["-m", "celery", "--quiet", "-A", "config"]
    commands = (
        [*celery, "worker", "--concurrency=1", "--without-mingle"],
        [*celery, "beat", f"--schedule={folder / 'schedule'}"],
    )
    processes = [start_process(command, log, environment) for command in commands]
    try:
        yield
    except TimeoutError:
        pytest.fail(log.read_text()[-5000:])
    finally:
        for process in processes:
            kill_group(process)


def _wait_until_processed(event: WebhookEvent) -> None:
    wait_until(lambda: WebhookEvent.objects.filter(pk=event.pk, status="PROCESSED").exists())


def test_beat_and_worker_recover_events_also_after_redis_was_killed_and_forgot_everything(
    redis: OwnRedis, buyer: User, monthly: Plan, tmp_path: Path
) -> None:
    before, after = paid(), paid()
    with _celery(tmp_path, redis):
        _wait_until_processed(store_and_lose(before))
        redis.kill()
        redis.start()

        _wait_until_processed(store_and_lose(after))

    for payload in (before, after):
        assert_applied_once(payload)
