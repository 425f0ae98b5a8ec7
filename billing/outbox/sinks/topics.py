from __future__ import annotations

import json
from time import monotonic
from typing import TYPE_CHECKING, Any

from billing.outbox.envelopes import Envelope
from billing.outbox.kafka_clients import producer
from billing.outbox.sinks import Refused, Unreachable
from billing.outbox.targets import Target

if TYPE_CHECKING:
    from confluent_kafka import KafkaError, Producer

# For the report to come after the library itself gave up.
_GRACE_S = 2


class TopicSink:
    """A Kafka topic: the key is the payment's id, so that one payment stays in one partition and
    keeps its order; the value is the message as JSON."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._producer: Producer | None = self._connect()

    def send(self, message: Envelope) -> None:
        from confluent_kafka import KafkaException

        if self._producer is None:
            self._producer = self._connect()
        reports: list[KafkaError | None] = []
        try:
            self._producer.produce(
                self._target.topic,
                key=str(message.key).encode(),
                value=json.dumps(message.to_json()).encode(),
                headers=[("id", str(message.id).encode()), ("type", message.type.encode())],
                on_delivery=lambda error, _: reports.append(error),
            )
        except KafkaException as error:
            self._fail(error.args[0])
        except BufferError as error:
            raise Unreachable("its queue is full") from error
        self._await(reports)
        if not reports:
            self._producer = None
            raise Unreachable("no delivery report")
        if reports[0] is not None:
            self._fail(reports[0])

    def close(self) -> None:
        """Nothing is left in the queue: every send waited for its report."""
        self._producer = None

    def _connect(self) -> Producer:
        target = self._target
        return producer(target.servers, target.options, timeout_s=target.timeout_s)

    def _await(self, reports: list[Any]) -> None:
        deadline = monotonic() + self._target.timeout_s + _GRACE_S
        while not reports and self._producer is not None and monotonic() < deadline:
            self._producer.poll(0.1)

    def _fail(self, error: KafkaError) -> None:
        from confluent_kafka import KafkaError as Code

        if error.fatal():
            # It never sends again; the next one does.
            self._producer = None
        if error.code() in (Code.MSG_SIZE_TOO_LARGE, Code.INVALID_MSG, Code.INVALID_RECORD):
            raise Refused(error.name())
        raise Unreachable(error.name())
