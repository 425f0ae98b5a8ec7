"""What is sent, in which order, how often, and when no more."""

from __future__ import annotations

from datetime import datetime
from threading import Event
from time import monotonic
from uuid import uuid4

import pytest
from django.db import connection
from django.db.models.functions import Now
from pytest_django import DjangoAssertNumQueries, Settings

from billing.models import OutboxDelivery, OutboxTarget
from billing.outbox import deliveries
from billing.outbox.dispatching import Pace, dispatch
from billing.outbox.envelopes import Envelope
from billing.outbox.holding import take
from billing.outbox.sinks import Refused, Unreachable
from tests.telling import Memory, in_order, make_due, statuses, target, tell, tell_all

pytestmark = pytest.mark.django_db

CRM, LAKE = target("crm"), target("lake")


@pytest.fixture(autouse=True)
def two_targets(settings: Settings) -> None:
    settings.OUTBOX_TARGETS = (CRM, LAKE)


def seconds_until(moment: datetime | None) -> float:
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM %s - clock_timestamp())", [moment])
        return float(cursor.fetchone()[0])


def breaker_wait_s() -> float:
    return seconds_until(OutboxTarget.objects.get(name="crm").open_until)


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


def test_a_target_that_fails_is_left_alone_and_then_probed_with_one_message():
    tell_all(10)
    sink = Memory(lambda _: Unreachable("ConnectTimeout"))

    assert dispatch(CRM, sink) == {"failed": 5}

    row = OutboxTarget.objects.get(name="crm")
    assert row.failures_in_a_row == 5
    assert 3.5 <= breaker_wait_s() <= 6
    OutboxDelivery.objects.update(next_attempt_at=Now())
    assert dispatch(CRM, sink) == {"held_back": 1}
    assert len(sink.tried) == 5

    make_due()
    assert dispatch(CRM, sink) == {"failed": 1}, "one probe"
    assert len(sink.tried) == 6
    assert 7.5 <= breaker_wait_s() <= 12

    sink.fail = lambda _: None
    make_due()
    assert dispatch(CRM, sink) == {"delivered": 10}
    row.refresh_from_db()
    assert (row.failures_in_a_row, row.open_until) == (0, None)


def test_a_target_may_be_away_for_as_long_as_it_likes_and_still_gets_everything():
    tell_all(2, messages_each=2)
    sink = Memory(lambda _: Unreachable("ConnectError"))
    for _ in range(60):
        dispatch(CRM, sink)
        make_due()
    assert set(statuses()) == {"PENDING"}, "failed probes use up nothing"
    assert len(sink.tried) > 20
    sink.fail = lambda _: None
    assert dispatch(CRM, sink) == {"delivered": 4}
    assert in_order(sink.seen)


def test_the_wait_of_an_open_breaker_is_capped():
    tell(uuid4())
    OutboxTarget.objects.create(name="crm", failures_in_a_row=40)
    dispatch(CRM, Memory(lambda _: Unreachable("ConnectError")))
    assert 47 <= breaker_wait_s() <= 72


def test_a_message_that_is_refused_opens_no_breaker_and_closes_one():
    tell_all(8)
    sink = Memory(lambda _: Refused("HTTP 400"))
    OutboxTarget.objects.create(name="crm", failures_in_a_row=7)
    assert dispatch(CRM, sink) == {"failed": 8}
    row = OutboxTarget.objects.get(name="crm")
    assert (row.failures_in_a_row, row.open_until) == (0, None)


def test_a_success_between_failures_begins_the_count_anew():
    keys = tell_all(9)
    odd = set(keys[::2])
    sink = Memory(lambda message: Unreachable("HTTP 500") if message.key in odd else None)
    assert dispatch(CRM, sink) == {"delivered": 4, "failed": 5}


@pytest.mark.parametrize(("asked_s", "kept_s"), [(42.0, 42), (10**9, 300)])
def test_a_target_that_asks_for_patience_gets_it_within_bounds(asked_s: float, kept_s: int):
    tell_all(3)
    sink = Memory(lambda _: Unreachable("HTTP 429", retry_after_s=asked_s))
    assert dispatch(CRM, sink) == {"failed": 1}
    assert kept_s - 1 < breaker_wait_s() <= kept_s


def test_an_error_nobody_thought_of_is_that_messages_failure():
    bad, _ = tell_all(2)
    sink = Memory(lambda message: KeyError("x") if message.key == bad else None)
    assert dispatch(CRM, sink) == {"delivered": 1, "failed": 1}
    assert OutboxDelivery.objects.get(target="crm", key=bad).last_error == "KeyError"


def test_what_another_dispatcher_holds_is_left_to_it_until_its_time_is_up():
    tell(uuid4())
    other = take("crm", seconds=60)
    assert other is not None
    sink = Memory()
    assert dispatch(CRM, sink) == {"held_back": 1}
    assert dispatch(LAKE, Memory()) == {"delivered": 1}
    make_due()
    assert dispatch(CRM, sink) == {"delivered": 1}


def test_whoever_lost_the_target_begins_nothing_and_writes_over_nothing():
    tell(uuid4())
    slow = take("crm", seconds=60)
    assert slow is not None
    make_due()
    assert take("crm", seconds=60) is not None
    (one,) = deliveries.due("crm", limit=10)
    assert deliveries.begin(one, slow) is None
    slow.failed(retry_after_s=99)
    slow.release()
    row = OutboxTarget.objects.get(name="crm")
    assert (row.open_until, row.failures_in_a_row) == (None, 0)
    assert row.holder not in (None, slow.holder)


def test_a_hold_is_renewed_as_it_goes_on_and_its_loss_is_noticed():
    hold = take("crm", seconds=60)
    assert hold is not None
    make_due()
    assert hold.keep(), "too early to ask"
    hold._taken -= 30
    assert hold.keep()
    assert seconds_until(OutboxTarget.objects.get(name="crm").held_until) > 50
    make_due()
    assert take("crm", seconds=60) is not None
    hold._taken -= 30
    assert not hold.keep()


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
