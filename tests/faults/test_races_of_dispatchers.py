"""Several dispatchers at once: a target is served by one at a time, and misses nothing."""

from __future__ import annotations

from functools import partial
from uuid import uuid4

import pytest
from pytest_django import Settings

from billing.outbox import dispatching
from billing.outbox.dispatching import dispatch
from billing.outbox.holding import Hold, take
from tests.faults.threads import Meeting, at_once
from tests.telling import Memory, in_order, make_due, statuses, target, tell_all

pytestmark = pytest.mark.django_db(transaction=True)

CRM = target("crm")


def test_of_several_that_take_a_target_at_once_one_wins():
    # The first time there is no row yet; the second time an expired hold is to be had.
    for _ in range(2):
        taken = at_once(*[partial(take, "crm", seconds=60)] * 6)
        assert len([hold for hold in taken if hold]) == 1
        make_due()


def test_dispatchers_at_once_send_each_message_once_and_in_order(settings: Settings):
    settings.OUTBOX_TARGETS = (CRM,)
    tell_all(5, messages_each=4)
    sink = Memory()
    at_once(*[partial(dispatch, CRM, sink)] * 4)
    dispatch(CRM, sink)
    assert len(sink.seen) == len(set(sink.seen)) == 20
    assert in_order(sink.seen)


def test_whoever_does_not_hold_the_target_begins_nothing(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
):
    """As a dispatcher would that was stopped for so long that its hold passed to another."""
    settings.OUTBOX_TARGETS = (CRM,)
    (key,) = tell_all(1)
    sink = Memory()
    meeting = Meeting(2)

    def take_anyway(name: str, *, seconds: int) -> Hold:
        hold = take(name, seconds=seconds)
        meeting.wait()
        return hold or Hold(name, uuid4(), seconds, 0)

    monkeypatch.setattr(dispatching, "take", take_anyway)
    results = at_once(*[partial(dispatch, CRM, sink)] * 2)
    assert sorted(result["delivered"] for result in results) == [0, 1]
    assert [message.key for message in sink.tried] == [key]
    assert statuses() == ["DELIVERED"]
