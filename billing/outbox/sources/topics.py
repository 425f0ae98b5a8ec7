from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from billing.outbox.incoming import Incoming
from billing.outbox.kafka_clients import consumer
from billing.outbox.sources import SourceAway

if TYPE_CHECKING:
    from confluent_kafka import Message, TopicPartition

_POLL_S = 1.0


class TopicSource:
    """A Kafka topic; a record's value is the message. Offsets are committed by us alone, after the
    database's commit, so whoever gets the partition next begins with what was not finished."""

    def __init__(self) -> None:
        if not settings.CONSUME_SERVERS:
            raise ImproperlyConfigured("CONSUME_SERVERS is not set: it names Kafka's servers")
        self._consumer = consumer(
            settings.CONSUME_SERVERS, settings.CONSUME_OPTIONS, group=settings.CONSUME_GROUP
        )
        self._assigned: set[tuple[str, int]] = set()
        self._at_end: set[tuple[str, int]] = set()
        self._consumer.subscribe(
            [settings.CONSUME_TOPIC], on_assign=self._on_assign, on_revoke=self._on_revoke
        )

    def next(self) -> list[Incoming]:
        record = self._consumer.poll(_POLL_S)
        if record is None:
            return []
        partition = (str(record.topic()), int(record.partition() or 0))
        if error := record.error():
            from confluent_kafka import KafkaError

            if error.code() != KafkaError._PARTITION_EOF:
                raise SourceAway(error.name())
            self._at_end.add(partition)
            return []
        self._at_end.discard(partition)
        return [_incoming(record)]

    def done(self, incoming: Incoming) -> None:
        from confluent_kafka import KafkaException

        try:
            self._consumer.commit(message=incoming.token, asynchronous=False)
        except KafkaException as error:
            raise SourceAway(error.args[0].name()) from error

    def is_drained(self) -> bool:
        return bool(self._assigned) and self._at_end >= self._assigned

    def close(self) -> None:
        self._consumer.close()

    def _on_assign(self, _: Any, partitions: list[TopicPartition]) -> None:
        self._assigned = {(each.topic, each.partition) for each in partitions}
        self._at_end = set()

    def _on_revoke(self, _: Any, _partitions: list[TopicPartition]) -> None:
        self._assigned = set()


def _incoming(record: Message) -> Incoming:
    # With its time: should the topic be made anew, its offsets begin again.
    _, at_ms = record.timestamp()
    position = f"{record.topic()}/{record.partition()}/{record.offset()}@{at_ms}"
    return Incoming("kafka", position, record.value() or b"", token=record)
