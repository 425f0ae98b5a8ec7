"""What is sent, in which order, how often, and when no more."""

from __future__ import annotations

from threading import Event
from time import monotonic
from uuid import uuid4

import pytest
from pytest_django import DjangoAssertNumQueries, Settings

from billing.models import OutboxDelivery, OutboxTarget
from billing.outbox.dispatching import Pace, dispatch
from billing.outbox.envelopes import Envelope
from billing.outbox.sinks import Refused
from tests.telling import (
    Memory,
    in_order,
    make_due,
    seconds_until,
    statuses,
    target,
    tell,
    tell_all,
)

pytestmark = pytest.mark.django_db

CRM, LAKE = target("crm"), target("lake")


@pytest.fixture(autouse=True)
def two_targets(settings: Settings) -> None:
    settings.OUTBOX_TARGETS = (CRM, LAKE)


def test_it_sends_everything_once_and_in_order_per_payment():
    tell_all(3, messages_each=4)
    sink = Memory()

    results = dispatch(CRM, sink)

    assert results == {"delivered": 12}
    assert len(set(sink.seen)) == 12
    assert in_order(sink.seen)
    assert set(statuses("crm")) == {"DELIVERED"}
    assert set(statuses("lake")) == {"PENDING"}, "each target has its own way"
    assert dispatch(CRM, sink) == {}
    assert OutboxTarget.objects.get(name="crm").holder is None


def test_a_message_says_what_was_written():
    key = uuid4()
    tell(key)
    sink = Memory()
    dispatch(CRM, sink)
    (message,) = sink.got
    row = OutboxDelivery.objects.get(target="crm").message
    assert (message.id, message.key, message.seq) == (row.pk, key, 1)
    assert (message.type, message.idempotency_key) == (row.type, row.idempotency_key)
    assert (message.timestamp, message.data) == (row.created_at, {"n": 0})


def test_one_that_fails_holds_back_its_own_payment_only():
    bad, good = tell_all(2, messages_each=2)
    sink = Memory(lambda message: Refused("HTTP 400") if message.key == bad else None)

    assert dispatch(CRM, sink) == {"delivered": 2, "failed": 1}

    assert statuses(key=bad) == ["PENDING", "PENDING"]
    assert statuses(key=good) == ["DELIVERED", "DELIVERED"]
    assert [message.seq for message in sink.tried if message.key == bad] == [1]
    sink.fail = lambda _: None
    make_due()
    assert dispatch(CRM, sink) == {"delivered": 2}
    assert in_order(sink.seen)


def test_the_next_attempt_comes_at_once_then_after_1_2_4_8_seconds_up_to_the_cap(
    settings: Settings,
):
    settings.OUTBOX_RETRY_CAP_S = 10
    settings.OUTBOX_MAX_ATTEMPTS = 99
    tell(uuid4())
    sink = Memory(lambda _: Refused("HTTP 400"))
    waits = []
    for _ in range(6):
        dispatch(CRM, sink)
        (row,) = OutboxDelivery.objects.filter(target="crm")
        waits.append(seconds_until(row.next_attempt_at))
        assert dispatch(CRM, sink) == {}, "not before its time"
        make_due()
    for wait, expected in zip(waits, (1, 2, 4, 8, 10, 10), strict=True):
        assert 0.7 * expected <= wait <= 1.2 * expected


def test_the_attempt_is_counted_and_the_next_one_moved_before_it_is_sent():
    tell(uuid4())
    found = []
    sink = Memory(lambda _: found.append(OutboxDelivery.objects.get(target="crm")))
    dispatch(CRM, sink)
    (before,) = found
    assert before.attempts == 1
    assert seconds_until(before.next_attempt_at) > 0.5


def test_a_dead_letter_holds_back_its_own_payment_at_its_own_target_only(
    settings: Settings,
):
    settings.OUTBOX_MAX_ATTEMPTS = 7
    bad, good = tell_all(2, messages_each=2)
    sink = Memory(lambda message: Refused("HTTP 422") if message.key == bad else None)
    for _ in range(12):
        dispatch(CRM, sink)
        make_due()
    assert len([message for message in sink.tried if message.key == bad]) == 7
    assert statuses(key=bad) == ["DEAD", "PENDING"]
    assert statuses(key=good) == ["DELIVERED", "DELIVERED"]
    dead = OutboxDelivery.objects.get(status="DEAD")
    assert (dead.attempts, dead.last_error, dead.next_attempt_at) == (7, "HTTP 422", None)
    assert [entry["attempt"] for entry in dead.log] == [3, 4, 5, 6, 7], "the last few are kept"
    assert {entry["result"] for entry in dead.log} == {"HTTP 422"}
    other = Memory()
    assert dispatch(LAKE, other) == {"delivered": 4}
    assert in_order(other.seen)


def test_a_message_whose_attempts_all_ended_without_a_word_is_dead(settings: Settings):
    tell_all(2)
    killer = OutboxDelivery.objects.filter(target="crm").first()
    assert killer is not None
    OutboxDelivery.objects.filter(pk=killer.pk).update(attempts=settings.OUTBOX_MAX_ATTEMPTS)
    sink = Memory()
    assert dispatch(CRM, sink) == {"delivered": 1, "dead": 1}
    killer.refresh_from_db()
    assert (killer.status, killer.key in dict(sink.seen)) == ("DEAD", False)


def test_an_error_nobody_thought_of_is_that_messages_failure():
    bad, _ = tell_all(2)
    sink = Memory(lambda message: KeyError("x") if message.key == bad else None)
    assert dispatch(CRM, sink) == {"delivered": 1, "failed": 1}
    assert OutboxDelivery.objects.get(target="crm", key=bad).last_error == "KeyError"


def test_what_a_person_skipped_meanwhile_stays_skipped():
    tell(uuid4())

    def skip_it(_: Envelope) -> None:
        OutboxDelivery.objects.update(status="SKIPPED")

    assert dispatch(CRM, Memory(skip_it)) == {"delivered": 0}
    assert statuses() == ["SKIPPED"]


def test_an_idle_dispatcher_asks_one_question_and_writes_nothing(
    django_assert_num_queries: DjangoAssertNumQueries,
):
    with django_assert_num_queries(1):
        dispatch(CRM, Memory())
    assert not OutboxTarget.objects.exists()


def test_it_stops_after_the_message_it_is_sending():
    tell_all(3)
    stop = Event()
    sink = Memory(lambda _: stop.set())
    assert dispatch(CRM, sink, stop=stop) == {"delivered": 1}


def test_a_rate_is_kept_evenly():
    tell_all(6)
    started = monotonic()
    assert dispatch(CRM, Memory(), pace=Pace(50)) == {"delivered": 6}
    assert 0.1 <= monotonic() - started < 2
