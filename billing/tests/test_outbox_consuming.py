"""PaymentInitiated from a Redis stream and from Kafka, by the command that runs in production."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from threading import Event, Thread
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from pytest_django import Settings
from redis import Redis

from billing.models import Payment, PoisonMessage
from billing.outbox import consuming
from billing.outbox.consuming import consume
from billing.outbox.incoming import Incoming, Taken, take
from billing.outbox.sources import open_source, streams
from billing.outbox.sources.streams import StreamSource
from subscriptions.models import User
from tests.asking import asked, body
from tests.faults.own_servers import OwnRedis
from tests.faults.servers import free_port, wait_until
from tests.kafka import kafka_cluster

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "_BLOCK_MS", 50)
    monkeypatch.setattr(consuming, "_PAUSE_S", 0.05)


def consumed(source: str) -> str:
    out = StringIO()
    call_command("consume_payments", "--from", source, "--once", stdout=out)
    return out.getvalue()


@pytest.fixture
def stream(settings: Settings) -> Iterator[Redis]:
    settings.CONSUME_STREAM = f"asked-{uuid4()}"
    settings.CONSUME_CLAIM_AFTER_S = 0
    with Redis.from_url(settings.CONSUME_REDIS_URL) as client:
        yield client
        client.delete(settings.CONSUME_STREAM)


def ask(stream: Redis, settings: Settings, said: object) -> None:
    stream.xadd(settings.CONSUME_STREAM, {"data": body(said)})


def unfinished(stream: Redis, settings: Settings) -> int:
    return int(stream.xpending(settings.CONSUME_STREAM, settings.CONSUME_GROUP)["pending"])


def test_a_stream_is_consumed_and_acknowledged(stream: Redis, settings: Settings, buyer: User):
    said = asked(buyer)
    for message in (said, said, {"type": "Other", "data": {}}, {"payment_id": 1}):
        ask(stream, settings, message)
    stream.xadd(settings.CONSUME_STREAM, {"something": "else"})

    assert consumed("redis") == (
        "5 message(s): 1 initiated, 1 duplicate, 0 refused, 1 ignored, 2 poison\n"
    )

    assert Payment.objects.count() == 1
    assert PoisonMessage.objects.count() == 2
    assert unfinished(stream, settings) == 0
    assert consumed("redis").startswith("0 message(s)")
    groups = stream.xinfo_groups(settings.CONSUME_STREAM)
    assert groups[0]["consumers"] == 0, "who ends takes its name off the list"


def test_a_message_is_acknowledged_only_once_the_database_has_it(
    stream: Redis, settings: Settings, buyer: User, monkeypatch: pytest.MonkeyPatch
):
    ask(stream, settings, asked(buyer))

    def database_fails(_: Incoming) -> Taken:
        raise OperationalError

    with monkeypatch.context() as patch:
        patch.setattr(consuming, "take", database_fails)
        # The real one would end this test's transaction.
        patch.setattr(connection, "close", lambda: None)
        with pytest.raises(CommandError, match="database does not answer"):
            consumed("redis")
    assert unfinished(stream, settings) == 1
    assert not PoisonMessage.objects.exists()

    assert "1 initiated" in consumed("redis")
    assert unfinished(stream, settings) == 0


def test_it_waits_for_the_database_and_goes_on(
    stream: Redis, settings: Settings, buyer: User, monkeypatch: pytest.MonkeyPatch
):
    ask(stream, settings, asked(buyer))
    stop, tries = Event(), []

    def fails_twice(incoming: Incoming) -> Taken:
        tries.append(incoming)
        if len(tries) < 3:
            raise OperationalError
        stop.set()
        return take(incoming)

    monkeypatch.setattr(consuming, "take", fails_twice)
    monkeypatch.setattr(connection, "close", lambda: None)
    assert consume(open_source("redis"), stop=stop) == {"initiated": 1}
    assert unfinished(stream, settings) == 0


def test_what_a_dead_consumer_left_is_claimed_but_not_what_a_live_one_works_on(
    stream: Redis, settings: Settings, buyer: User
):
    ask(stream, settings, asked(buyer))
    dead = StreamSource()
    dead._me = "dead"
    assert len(dead.next()) == 1
    settings.CONSUME_CLAIM_AFTER_S = 60
    assert consumed("redis").startswith("0 message(s)")
    settings.CONSUME_CLAIM_AFTER_S = 0
    assert "1 initiated" in consumed("redis")


def test_an_entry_that_was_deleted_meanwhile_is_let_go(
    stream: Redis, settings: Settings, buyer: User
):
    ask(stream, settings, asked(buyer))
    dead = StreamSource()
    dead._me = "dead"
    (incoming,) = dead.next()
    stream.xdel(settings.CONSUME_STREAM, incoming.token)
    assert consumed("redis").startswith("0 message(s)")


def test_a_redis_that_was_emptied_gets_its_group_back(settings: Settings, tmp_path: Path):
    redis = OwnRedis(tmp_path / "redis")
    try:
        settings.CONSUME_REDIS_URL = redis.url
        settings.CONSUME_STREAM = "asked"
        stop = Event()
        source = open_source("redis")
        thread = Thread(target=consume, args=[source], kwargs={"stop": stop}, daemon=True)
        thread.start()
        with Redis.from_url(redis.url) as client:
            wait_until(lambda: client.exists("asked"), patience_s=5)
            client.flushall()
            wait_until(lambda: client.exists("asked"), patience_s=10)
        stop.set()
        thread.join(10)
        assert not thread.is_alive()
        redis.kill()
        with pytest.raises(CommandError, match="redis does not answer: ConnectionError"):
            consumed("redis")
    finally:
        redis.remove()


@contextmanager
def topic(settings: Settings) -> Iterator[Producer]:
    with kafka_cluster() as servers:
        settings.CONSUME_SERVERS = servers
        settings.CONSUME_TOPIC = "asked"
        yield Producer({"bootstrap.servers": servers})


def test_a_topic_is_consumed_and_its_offsets_committed(settings: Settings, buyer: User):
    said = asked(buyer)
    with topic(settings) as producer:
        for message in (said, said, "poison"):
            producer.produce("asked", key=said["payment_id"], value=body(message))
        producer.flush(10)
        assert consumed("kafka") == (
            "3 message(s): 1 initiated, 1 duplicate, 0 refused, 0 ignored, 1 poison\n"
        )
        assert Payment.objects.count() == 1
        kept = PoisonMessage.objects.get()
        assert (kept.source, kept.position.split("@")[0][-2:]) == ("kafka", "/2")

        # Another consumer of the group would go on after them.
        partition = int(kept.position.split("/")[1])
        group = {"bootstrap.servers": settings.CONSUME_SERVERS, "group.id": "tollgate"}
        (committed,) = Consumer(group).committed([TopicPartition("asked", partition)], timeout=10)
        assert committed.offset == 3


def test_kafka_without_servers_is_told_what_to_set(settings: Settings):
    settings.CONSUME_SERVERS = ""
    with pytest.raises(ImproperlyConfigured, match="CONSUME_SERVERS"):
        consumed("kafka")


def test_a_kafka_that_is_away_is_said(settings: Settings, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(consuming, "_PATIENCE_S", 0.5)
    settings.CONSUME_SERVERS = f"127.0.0.1:{free_port()}"
    with pytest.raises(CommandError, match="kafka does not answer"):
        consumed("kafka")
