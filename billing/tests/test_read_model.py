"""The read model never goes backwards, and can be made anew from the outbox."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from io import StringIO
from itertools import permutations
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db.models import F

from billing.models import OutboxMessage, Payment, PaymentView, ProcessedMessage
from billing.outbox import read_model
from billing.outbox.envelopes import Envelope
from billing.outbox.messages import Message, MessageType, write
from billing.outbox.read_model import clean_processed, take
from billing.tasks import clean_processed_messages_task
from subscriptions.models import Plan, User
from tests.faults.threads import at_once
from tests.sending import deliver, paid

pytestmark = pytest.mark.django_db

START = datetime(2024, 1, 1, tzinfo=UTC)
STORY = ("PROCESSING", "SUCCEEDED", "REFUNDED")


def _payment(payment_id: UUID, status: str, **fields: Any) -> dict[str, Any]:
    return {
        "payment_id": str(payment_id),
        "provider": "tilda",
        "external_payment_id": f"pay-{payment_id}",
        "provider_txn_id": None,
        "merchant_uid": "order-1",
        "user_id": str(UUID(int=7)),
        "status": status,
        "amount": "990.5",
        "currency": "RUB",
        "amount_refunded": "0",
        "paid_at": None,
        "applied_at": None,
        "created_at": START.isoformat(),
        **fields,
    }


def _told(payment_id: UUID, status: str, *, seq: int | None, minute: int) -> Envelope:
    return Envelope(
        id=uuid4(),
        type="PaymentSucceeded",
        key=payment_id,
        seq=seq,
        idempotency_key=str(uuid4()),
        timestamp=START + timedelta(minutes=minute),
        data={"payment": _payment(payment_id, status)},
    )


def _story(payment_id: UUID) -> list[Envelope]:
    return [
        _told(payment_id, status, seq=seq, minute=seq) for seq, status in enumerate(STORY, start=1)
    ]


def _write_story(payment_id: UUID, *statuses: str) -> None:
    """As the product tells it: into the outbox."""
    for status in statuses:
        data = {"payment": _payment(payment_id, status)}
        write(Message(MessageType.PAYMENT_PROCESSING, payment_id, f"{status}{uuid4()}", data))


def _from_outbox() -> list[Envelope]:
    return [read_model._envelope(message) for message in OutboxMessage.objects.order_by("?")]


def _rows() -> list[dict[str, Any]]:
    return [dict(row) for row in PaymentView.objects.order_by("pk").values()]


def test_a_message_becomes_a_row() -> None:
    payment_id = uuid4()
    message = _told(payment_id, "SUCCEEDED", seq=3, minute=5)

    assert take(message)

    row = PaymentView.objects.get()
    assert (row.payment_id, row.seq, row.told_at) == (payment_id, 3, message.timestamp)
    assert (row.status, row.amount, row.currency) == ("SUCCEEDED", Decimal("990.5"), "RUB")
    assert (row.user_id, row.merchant_uid) == (UUID(int=7), "order-1")
    assert (row.provider_txn_id, row.paid_at, row.created_at) == (None, None, START)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_no_order_of_arrival_takes_the_status_back(order: tuple[int, ...]) -> None:
    story = _story(uuid4())
    for place in order:
        assert take(story[place])

    row = PaymentView.objects.get()
    assert (row.status, row.seq) == ("REFUNDED", 3)


def test_without_the_guard_a_late_message_takes_the_status_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Negative control."""
    unguarded, guard, _ = read_model._PUT.partition("WHERE excluded.seq > view.seq")
    assert guard
    monkeypatch.setattr(read_model, "_PUT", unguarded)
    first, _, last = _story(uuid4())

    take(last)
    take(first)

    assert PaymentView.objects.get().status == "PROCESSING"


def test_a_message_counts_once() -> None:
    payment_id = uuid4()
    message = _told(payment_id, "SUCCEEDED", seq=1, minute=1)
    assert take(message)
    # Whatever happened to the row since: what was taken is not taken again.
    PaymentView.objects.update(status="FAILED", seq=0)

    assert not take(message)

    assert PaymentView.objects.get().status == "FAILED"
    assert ProcessedMessage.objects.count() == 1


def test_another_message_with_the_same_number_changes_nothing() -> None:
    payment_id = uuid4()
    take(_told(payment_id, "SUCCEEDED", seq=2, minute=1))

    assert take(_told(payment_id, "PROCESSING", seq=2, minute=9))

    assert PaymentView.objects.get().status == "SUCCEEDED"


@pytest.mark.parametrize(("minute", "status"), [(4, "SUCCEEDED"), (5, "SUCCEEDED"), (6, "FAILED")])
def test_a_message_from_elsewhere_needs_a_later_time(minute: int, status: str) -> None:
    payment_id = uuid4()
    take(_told(payment_id, "SUCCEEDED", seq=2, minute=5))

    assert take(_told(payment_id, "FAILED", seq=None, minute=minute))

    row = PaymentView.objects.get()
    assert (row.status, row.seq) == (status, 2)


def test_a_first_message_from_elsewhere_is_followed_by_numbered_ones() -> None:
    payment_id = uuid4()
    take(_told(payment_id, "PROCESSING", seq=None, minute=5))
    assert PaymentView.objects.get().seq == 0

    take(_told(payment_id, "SUCCEEDED", seq=1, minute=1))
    take(_told(payment_id, "FAILED", seq=None, minute=4))

    row = PaymentView.objects.get()
    assert (row.status, row.seq, row.told_at) == ("SUCCEEDED", 1, START + timedelta(minutes=5))


def test_a_message_that_is_not_about_a_payment_is_only_marked() -> None:
    message = Envelope(
        uuid4(), "SubscriptionExpired", uuid4(), 1, "key", START, {"subscription": 1}
    )

    assert take(message)
    assert not take(message)

    assert not PaymentView.objects.exists()


def test_a_message_that_cannot_be_read_is_not_marked() -> None:
    message = _told(uuid4(), "SUCCEEDED", seq=1, minute=1)
    message.data["payment"]["status"] = None

    with pytest.raises(Exception, match="status"):
        take(message)

    assert not ProcessedMessage.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_of_the_same_message_many_times_at_once_one_is_taken() -> None:
    message = _told(uuid4(), "SUCCEEDED", seq=1, minute=1)

    taken = at_once(*(lambda: take(message) for _ in range(8)))

    assert sorted(taken) == [False] * 7 + [True]
    assert PaymentView.objects.get().status == "SUCCEEDED"


@pytest.mark.django_db(transaction=True)
def test_of_different_messages_at_once_the_newest_stands() -> None:
    payment_id = uuid4()
    messages = [_told(payment_id, STORY[n % 3], seq=n, minute=n) for n in range(1, 9)]

    at_once(*(lambda message=message: take(message) for message in messages))

    assert PaymentView.objects.get().seq == 8


def test_processed_messages_are_forgotten_after_seven_days() -> None:
    for _ in range(2):
        take(_told(uuid4(), "SUCCEEDED", seq=1, minute=1))
    old, new = ProcessedMessage.objects.order_by("pk")
    ProcessedMessage.objects.filter(pk=old.pk).update(at=F("at") - timedelta(days=7, seconds=5))

    assert clean_processed() == 1

    assert ProcessedMessage.objects.get() == new


def test_the_cleaning_goes_on_until_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_model, "_CLEAN_BATCH", 2)
    for _ in range(5):
        take(_told(uuid4(), "SUCCEEDED", seq=1, minute=1))
    ProcessedMessage.objects.update(at=F("at") - timedelta(days=8))

    clean_processed_messages_task()

    assert not ProcessedMessage.objects.exists()


def _rebuild(**options: Any) -> str:
    said = StringIO()
    call_command("rebuild_payment_view", stdout=said, **options)
    return said.getvalue()


def test_a_rebuild_equals_the_live_one() -> None:
    for number in range(7):
        _write_story(uuid4(), *STORY[: number % 3 + 1])
    for message in _from_outbox():
        take(message)
    live = _rows()
    assert len(live) == 7

    PaymentView.objects.all().delete()
    assert _rebuild(batch=3).startswith("7 payment(s) written")
    assert _rows() == live

    # Once more, over what is there, and over what is wrong.
    PaymentView.objects.update(status="RECEIVED", amount=1)
    PaymentView.objects.filter(pk=live[0]["payment_id"]).update(seq=99)
    stray = {**live[1], "payment_id": uuid4()}
    PaymentView.objects.create(**stray)
    assert _rebuild(batch=2) == (
        "7 payment(s) written from the outbox, 2 row(s) without a message deleted.\n"
    )
    assert _rows() == live


def test_what_webhooks_did_is_shown_the_same_live_and_rebuilt(buyer: User, monthly: Plan) -> None:
    """The whole way: in by the door, told through the outbox, taken in any order."""
    for story in (["pending", "paid"], ["paid", "refunded"], ["failed"]):
        payment_id = str(uuid4())
        for status in story:
            assert deliver(paid(external_payment_id=payment_id, status=status)).status_code == 200
    messages = _from_outbox()
    for message in [*messages, *messages]:
        take(message)
    live = _rows()

    PaymentView.objects.all().delete()
    _rebuild()

    assert _rows() == live
    assert {row["payment_id"]: row["status"] for row in live} == dict(
        Payment.objects.values_list("pk", "status")
    )
    assert sorted(row["status"] for row in live) == ["FAILED", "REFUNDED", "SUCCEEDED"]


def test_a_rebuild_ignores_what_was_marked_and_leaves_it_marked() -> None:
    _write_story(uuid4(), "SUCCEEDED")
    (message,) = _from_outbox()
    take(message)
    PaymentView.objects.all().delete()

    _rebuild()

    assert PaymentView.objects.get().status == "SUCCEEDED"
    assert not take(message)


def test_a_rebuild_does_not_write_over_a_newer_live_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The live consumer takes the next one after the rebuild has read, before it writes. The clock
    was set back in between: the number is what counts."""
    payment_id = uuid4()
    _write_story(payment_id, "PROCESSING")
    put_again = read_model.put_again

    def after_a_live_message(messages: list[Envelope]) -> None:
        _write_story(payment_id, "SUCCEEDED")
        an_hour = timedelta(hours=1)
        OutboxMessage.objects.filter(seq=2).update(created_at=F("created_at") - an_hour)
        (live,) = (message for message in _from_outbox() if message.seq == 2)
        take(live)
        put_again(messages)

    target = "billing.management.commands.rebuild_payment_view.put_again"
    monkeypatch.setattr(target, after_a_live_message)
    _rebuild()

    assert [(row["status"], row["seq"]) for row in _rows()] == [("SUCCEEDED", 2)]


def test_a_rebuild_tells_of_failure_by_its_exit() -> None:
    _write_story(uuid4(), "SUCCEEDED")
    message = OutboxMessage.objects.get()
    message.data["payment"]["created_at"] = None
    message.save()

    with pytest.raises(CommandError, match="refused"):
        _rebuild()


def test_a_rebuild_of_nothing_says_so() -> None:
    assert _rebuild().startswith("0 payment(s)")
