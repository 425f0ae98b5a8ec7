"""What each kind of target gets, and how its failures are understood."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from django.conf import settings as django_settings
from redis import Redis
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from billing.models import ProcessedMessage
from billing.outbox.envelopes import Envelope
from billing.outbox.sinks import Refused, Sink, Unreachable, open_sink
from billing.outbox.targets import Kind
from tests.faults.own_servers import OwnRedis
from tests.faults.servers import free_port
from tests.kafka import kafka_cluster
from tests.looking import database_away
from tests.telling import SECRET, Receiver, envelope, receiver, target


@pytest.fixture
def api() -> Iterator[Receiver]:
    with receiver() as server:
        yield server


def http(api: Receiver, **fields: Any) -> Sink:
    return open_sink(target(url=api.url, **fields))


def test_an_envelope_survives_json():
    message = envelope(seq=None)
    assert Envelope.from_json(json.loads(json.dumps(message.to_json()))) == message


@pytest.mark.parametrize(
    ("secret", "verifier"),
    [(SECRET, Webhook(SECRET)), ("a plain secret of 30 characters", None)],
)
def test_http_gets_a_message_that_the_standard_library_verifies(
    api: Receiver, secret: str, verifier: Webhook | None
):
    message = envelope()
    http(api, secret=secret).send(message)

    (request,) = api.requests
    verifier = verifier or Webhook(secret.encode())
    said = verifier.verify(request.body, request.headers)
    assert Envelope.from_json(said) == message
    assert request.headers["webhook-id"] == str(message.id)
    assert request.headers["idempotency-key"] == message.idempotency_key
    assert request.headers["content-type"] == "application/json"
    with pytest.raises(WebhookVerificationError):
        verifier.verify(request.body + b" ", request.headers)


def test_a_repeat_is_signed_anew_under_the_same_id(api: Receiver):
    sink, message = http(api), envelope()
    for _ in range(2):
        sink.send(message)
    first, second = api.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.body == second.body


def test_a_key_that_no_header_may_carry_is_quoted(api: Receiver):
    http(api).send(envelope(idempotency_key="PaymentRefunded:1:возврат\r\nX-Evil: 1"))
    headers = api.requests[0].headers
    assert headers["idempotency-key"].isascii()
    assert "x-evil" not in headers


@pytest.mark.parametrize("status", [400, 401, 404, 410, 413, 422])
def test_a_4xx_is_the_messages_fault(api: Receiver, status: int):
    api.answer = lambda _: (status, {})
    with pytest.raises(Refused, match=f"^HTTP {status}$"):
        http(api).send(envelope())


@pytest.mark.parametrize("status", [408, 409, 425, 429, 500, 502, 503])
def test_what_says_later_is_the_targets_fault(api: Receiver, status: int):
    api.answer = lambda _: (status, {})
    with pytest.raises(Unreachable, match=f"^HTTP {status}$") as caught:
        http(api).send(envelope())
    assert caught.value.retry_after_s is None


def test_a_redirect_is_not_followed(api: Receiver):
    with receiver() as elsewhere:
        api.answer = lambda _: (307, {"Location": elsewhere.url})
        with pytest.raises(Unreachable, match="HTTP 307"):
            http(api).send(envelope())
        assert elsewhere.requests == []


def test_retry_after_is_read_as_seconds_or_as_a_date(api: Receiver):
    in_a_minute = format_datetime(datetime.now(UTC) + timedelta(seconds=60), usegmt=True)
    for header, expected in (("30", 30), (in_a_minute, 59), ("soon", None), ("-1", None)):
        headers = {"Retry-After": header}
        api.answer = lambda _, headers=headers: (503, headers)  # type: ignore[misc]
        with pytest.raises(Unreachable) as caught:
            http(api).send(envelope())
        assert caught.value.retry_after_s == pytest.approx(expected, abs=3), header


def test_nobody_there_and_nobody_answering_are_the_targets_fault():
    with pytest.raises(Unreachable, match="ConnectError"):
        open_sink(target(url=f"http://127.0.0.1:{free_port()}/")).send(envelope())
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/"
        started = monotonic()
        with pytest.raises(Unreachable, match="ReadTimeout"):
            open_sink(target(url=url, timeout_s=1)).send(envelope())
        assert monotonic() - started < 3


def test_the_status_counts_although_the_answer_has_no_end(api: Receiver):
    # The other side promises a gigabyte and then is silent.
    api.answer = lambda _: (200, {"Content-Length": str(10**9)})
    started = monotonic()
    http(api, timeout_s=1).send(envelope())
    assert monotonic() - started < 3


def test_redis_gets_an_entry_with_the_messages_fields():
    sink = open_sink(target(kind=Kind.REDIS, stream="told", max_length=1000))
    message = envelope()
    with Redis.from_url(django_settings.REDIS_URL, decode_responses=True) as client:
        client.delete("told")
        sink.send(message)
        ((_, fields),) = client.xrange("told")
        client.delete("told")
    assert fields.pop("seq") == "1"
    fields["data"] = json.loads(fields["data"])
    assert Envelope.from_json({**fields, "seq": 1}) == message


def test_a_redis_stream_is_kept_short_about():
    sink = open_sink(target(kind=Kind.REDIS, stream="short", max_length=100))
    for _ in range(400):
        sink.send(envelope())
    with Redis.from_url(django_settings.REDIS_URL) as client:
        assert 100 <= client.xlen("short") <= 300
        client.delete("short")


def test_a_redis_that_is_away_or_frozen_is_the_targets_fault(tmp_path: Path):
    redis = OwnRedis(tmp_path / "redis")
    try:
        sink = open_sink(target(kind=Kind.REDIS, url=redis.url, stream="s", timeout_s=1))
        sink.send(envelope())
        redis.freeze()
        with pytest.raises(Unreachable, match="TimeoutError"):
            sink.send(envelope())
        redis.kill()
        with pytest.raises(Unreachable, match="ConnectionError"):
            sink.send(envelope())
        redis.start()
        sink.send(envelope())
    finally:
        redis.remove()


def test_kafka_gets_a_record_whose_key_is_the_payment():
    with kafka_cluster() as servers:
        sink = open_sink(target(kind=Kind.KAFKA, servers=servers, topic="told"))
        messages = [envelope() for _ in range(3)]
        for message in messages:
            sink.send(message)
        reader = Consumer({"bootstrap.servers": servers, "group.id": "test"})
        reader.assign([TopicPartition("told", number, 0) for number in range(4)])
        records: list[Any] = [reader.poll(10) for _ in messages]
        reader.close()
        sink.close()
    got = {record.key(): Envelope.from_json(json.loads(record.value())) for record in records}
    assert got == {str(message.key).encode(): message for message in messages}


def test_a_kafka_that_is_away_is_the_targets_fault():
    servers = f"127.0.0.1:{free_port()}"
    sink = open_sink(target(kind=Kind.KAFKA, servers=servers, topic="told", timeout_s=1))
    started = monotonic()
    with pytest.raises(Unreachable, match="_MSG_TIMED_OUT"):
        sink.send(envelope())
    assert monotonic() - started < 4


def test_a_message_too_large_for_kafka_is_the_messages_fault():
    options = {"message.max.bytes": "1000"}
    with kafka_cluster() as servers:
        sink = open_sink(target(kind=Kind.KAFKA, servers=servers, topic="t", options=options))
        with pytest.raises(Refused, match="MSG_SIZE_TOO_LARGE"):
            sink.send(envelope(data={"long": "x" * 2000}))
        sink.close()


@pytest.mark.django_db
def test_the_read_model_takes_a_message_once():
    sink, message = open_sink(target(kind=Kind.READ_MODEL)), envelope()
    for _ in range(2):
        sink.send(message)
    assert ProcessedMessage.objects.get().message_id == message.id


@pytest.mark.django_db(transaction=True)
def test_a_read_model_without_its_database_is_the_targets_fault():
    sink = open_sink(target(kind=Kind.READ_MODEL))
    with database_away(), pytest.raises(Unreachable, match="OperationalError"):
        sink.send(envelope())
