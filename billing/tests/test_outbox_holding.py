"""Which dispatcher serves a target, and when nobody does because it fails."""

from __future__ import annotations

from uuid import uuid4

import pytest
from django.db.models.functions import Now
from pytest_django import Settings

from billing.models import OutboxDelivery, OutboxTarget
from billing.outbox import deliveries
from billing.outbox.dispatching import dispatch
from billing.outbox.holding import take
from billing.outbox.sinks import Refused, Unreachable
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


def breaker_wait_s() -> float:
    return seconds_until(OutboxTarget.objects.get(name="crm").open_until)


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
