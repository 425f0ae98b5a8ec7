"""Many payments of one order, and many names of one charge, at the same moment.

Each race is shown twice with the same forced interleaving: with a guard taken away the damage is
there; with the code as it is it is not.
"""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from functools import partial
from itertools import pairwise
from typing import Any
from uuid import UUID

import pytest
from django.db import connection

from billing import giving, recording, settling
from billing.linking import find_order
from billing.models import Booking, Grant, Order, OutboxMessage, Payment, Wallet
from billing.purchases import subscription_time
from billing.recording_sql import FIND_OR_CREATE
from subscriptions.extending import lock_end
from subscriptions.models import Plan, User
from tests.factories import BookingFactory, StaffFactory, TopupFactory
from tests.faults.servers import Web
from tests.faults.threads import Meeting, at_once
from tests.faults.truths import assert_periods_adjacent
from tests.looking import in_another_connection
from tests.sending import deliver, paid
from webhooks import process, review
from webhooks.audit import Actor
from webhooks.models import AuditEntry, WebhookEvent

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def booking(buyer: User) -> Booking:
    return BookingFactory.create(order__user=buyer, order__merchant_uid="order")


def _pays(**fields: Any) -> dict[str, Any]:
    return paid(**{"merchant_uid": "order", "email": None, "amount": "500", **fields})


def _deliver_at_once(*payloads: dict[str, Any]) -> list[str]:
    answers = at_once(*(partial(deliver, payload) for payload in payloads))
    return [answer.json()["status"] for answer in answers]


def _assert_confirmed_once() -> None:
    assert (Booking.objects.get().status, Order.objects.get().status) == ("CONFIRMED", "PAID")
    grant = Grant.objects.get()
    assert grant.payment.subscription_applied_at == Booking.objects.get().paid_at
    assert OutboxMessage.objects.filter(type="BookingConfirmed").count() == 1
    assert AuditEntry.objects.filter(action="payment_applied").count() == 1


def test_ten_events_of_one_payment_confirm_its_order_once(web: Web, booking: Booking) -> None:
    payloads = [_pays(external_payment_id="p") for _ in range(10)]

    answers = web.send_all(payloads, at_once=10)

    assert [answer.json()["status"] for answer in answers] == ["processed"] * 10
    assert WebhookEvent.objects.filter(status="PROCESSED").count() == 10
    _assert_confirmed_once()


def test_ten_repeats_of_one_event_confirm_its_order_once(web: Web, booking: Booking) -> None:
    answers = web.send_all([_pays()] * 10, at_once=10)

    results = Counter(answer.json()["status"] for answer in answers)
    assert results == {"processed": 1, "duplicate": 9}
    _assert_confirmed_once()


def test_ten_payments_of_one_order_confirm_it_once(web: Web, booking: Booking) -> None:
    answers = web.send_all([_pays() for _ in range(10)], at_once=10)

    results = Counter(answer.json()["status"] for answer in answers)
    assert results == {"processed": 1, "failed_final": 9}
    second = WebhookEvent.objects.filter(error_code="ORDER_ALREADY_PAID", review="OPEN")
    assert second.count() == 9
    assert Payment.objects.filter(status="SUCCEEDED").count() == 10
    _assert_confirmed_once()


def test_ten_payments_of_one_order_credit_the_wallet_once(web: Web, buyer: User) -> None:
    TopupFactory.create(user=buyer, merchant_uid="order")

    web.send_all([_pays() for _ in range(10)], at_once=10)

    assert Wallet.objects.get().balance == 500
    assert Grant.objects.count() == 1


def _order_without_lock(merchant_uid: str | None) -> Order | None:
    return Order.objects.select_related("plan").filter(merchant_uid=merchant_uid).first()


@pytest.fixture
def topup(buyer: User) -> Order:
    return TopupFactory.create(user=buyer, merchant_uid="order")


@pytest.mark.breaks_invariants("applied_means_one_live_grant", "paid_order_has_one_live_grant")
def test_an_order_is_paid_twice_without_its_lock_and_its_unique_grant(
    topup: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: both see the order unpaid before either pays it."""
    monkeypatch.setattr(giving, "find_order", Meeting(2).after(_order_without_lock))
    create_index = _drop_unique_live_grant()
    try:
        assert _deliver_at_once(_pays(), _pays()) == ["processed", "processed"]

        assert Wallet.objects.get().balance == 1000
        assert Grant.objects.filter(order=topup).count() == 2
    finally:
        Grant.objects.filter(order=topup).update(order=None)
        with connection.cursor() as cursor:
            cursor.execute(create_index)


def test_the_unique_live_grant_alone_keeps_an_order_from_being_paid_twice(
    topup: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second line of defence: should the lock ever be lost, the database refuses."""
    monkeypatch.setattr(giving, "find_order", Meeting(2).after(_order_without_lock))

    assert sorted(_deliver_at_once(_pays(), _pays())) == ["failed_retryable", "processed"]

    assert Wallet.objects.get().balance == 500
    failed = WebhookEvent.objects.get(status="FAILED_RETRYABLE")
    assert failed.error_message == "IntegrityError 23505 grant_one_live_per_order"


def test_an_order_is_paid_once_when_two_payments_come_at_once(
    topup: Order, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(giving, "find_order", Meeting(2).after(find_order))

    assert sorted(_deliver_at_once(_pays(), _pays())) == ["failed_final", "processed"]

    assert Wallet.objects.get().balance == 500
    assert WebhookEvent.objects.get(status="FAILED_FINAL").error_code == "ORDER_ALREADY_PAID"


def _drop_unique_live_grant() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_get_indexdef('grant_one_live_per_order'::regclass)")
        (create_index,) = cursor.fetchone()
        cursor.execute("DROP INDEX grant_one_live_per_order")
    return str(create_index)


def _two_names() -> list[dict[str, Any]]:
    """The first events of one charge, each by another name, and one name they share."""
    return [
        paid(external_payment_id="session", aliases={"bank": "b"}),
        paid(external_payment_id="intent", aliases={"bank": "b"}),
    ]


def test_two_first_events_of_one_charge_make_one_payment(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = Meeting(2).after(recording._find_or_create_locked)
    monkeypatch.setattr(recording, "_find_or_create_locked", found)

    assert _deliver_at_once(*_two_names()) == ["processed", "processed"]

    assert Payment.objects.count() == 1
    assert_periods_adjacent(buyer, number=1)


def test_many_first_events_of_one_charge_make_one_payment(
    web: Web, buyer: User, monthly: Plan
) -> None:
    payloads = [
        paid(external_payment_id=f"name-{number}", aliases={"bank": "b", "shop": "s"})
        for number in range(10)
    ]

    answers = web.send_all(payloads, at_once=10)

    assert [answer.json()["status"] for answer in answers] == ["processed"] * 10
    assert Payment.objects.count() == 1
    assert Payment.objects.get().aliases.count() == 12
    assert_periods_adjacent(buyer, number=1)


def test_a_charge_becomes_two_payments_without_the_look_at_its_names(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: names that somebody else took at the same moment are left to them."""
    careless = FIND_OR_CREATE.replace("DO UPDATE SET payment_id = alias.payment_id", "DO NOTHING")
    assert careless != FIND_OR_CREATE
    monkeypatch.setattr(recording, "FIND_OR_CREATE", careless)
    found = Meeting(2).after(recording._find_or_create_locked)
    monkeypatch.setattr(recording, "_find_or_create_locked", found)

    _deliver_at_once(*_two_names())

    assert Payment.objects.count() == Grant.objects.count() == 2


@pytest.fixture
def disputed(buyer: User, monthly: Plan) -> WebhookEvent:
    deliver(paid(external_payment_id="p"))
    deliver(paid(event_id="d", external_payment_id="p", status="disputed"))
    return WebhookEvent.objects.get(external_event_id="d")


def _people() -> list[Actor]:
    return [Actor.staff(StaffFactory.create()) for _ in range(2)]


def test_two_people_who_revoke_at_once_revoke_once(disputed: WebhookEvent) -> None:
    people = _people()
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(process, "settle", Meeting(2).after(settling.settle))
        outcomes = at_once(
            *(partial(review.revoke, disputed, person, "fraud") for person in people)
        )

    assert {outcome.result for outcome in outcomes} == {"processed", "duplicate"}
    assert Grant.objects.get().revoked_at is not None
    assert AuditEntry.objects.filter(action="payment_revoked").count() == 1
    assert OutboxMessage.objects.filter(type="SubscriptionRevoked").count() == 1


def test_two_people_who_shorten_at_once_shorten_once(buyer: User, monthly: Plan) -> None:
    deliver(paid(external_payment_id="p"))
    told = {"refund_id": "a", "amount": "330", "status": "partially_refunded"}
    deliver(paid(event_id="a", external_payment_id="p", **told))
    event = WebhookEvent.objects.get(external_event_id="a")
    people = _people()

    at_once(*(partial(review.shorten, event, person, "a third") for person in people))

    assert AuditEntry.objects.filter(action="payment_shortened").count() == 1
    grant = Grant.objects.get()
    assert grant.starts_at
    assert grant.ends_at
    assert grant.length
    assert abs((grant.ends_at - grant.starts_at) / grant.length - 2 / 3) < 0.001


def test_two_people_who_reinstate_at_once_reinstate_once(disputed: WebhookEvent) -> None:
    deliver(paid(external_payment_id="p", status="dispute_lost"))
    deliver(paid(event_id="w", external_payment_id="p", status="dispute_won"))
    event = WebhookEvent.objects.get(external_event_id="w")
    people = _people()

    at_once(*(partial(review.reinstate, event, person, "won") for person in people))

    assert AuditEntry.objects.filter(action="payment_reinstated").count() == 1
    assert Grant.objects.get().revoked_at is None


@pytest.mark.parametrize("status", ["refunded", "partially_refunded"])
def test_taking_back_of_neighbouring_grants_at_once_leaves_no_gap(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """Whoever has read its own grant may find it moved by the time it has the subscription's
    lock: another refund came in between."""
    for name in "abcd":
        deliver(paid(external_payment_id=name))
    told = {"refund_id": "r", "amount": "330"} if status == "partially_refunded" else {}
    between = [paid(external_payment_id="a", status="refunded")]

    def locked_late(subscription_id: UUID) -> datetime:
        if between:
            in_another_connection(deliver, between.pop())
        return lock_end(subscription_id)

    monkeypatch.setattr(subscription_time, "lock_end", locked_late)

    deliver(paid(event_id="c", external_payment_id="c", status=status, **told))
    if told:
        event = WebhookEvent.objects.get(external_event_id="c")
        review.shorten(event, Actor("staff:anna", is_person=True), "a third")

    assert not between
    left = list(Grant.objects.filter(revoked_at__isnull=True).order_by("starts_at"))
    assert [g.payment.external_payment_id for g in left] == (
        ["b", "c", "d"] if told else ["b", "d"]
    )
    for earlier, later in pairwise(left):
        assert later.starts_at == earlier.ends_at
    subscription = left[0].subscription
    assert subscription
    assert subscription.current_period_end == left[-1].ends_at


def test_a_payment_and_its_refund_at_once_end_refunded(buyer: User, monthly: Plan) -> None:
    deliver(paid(external_payment_id="p", status="pending"))

    _deliver_at_once(*(paid(external_payment_id="p", status=word) for word in ("paid", "refunded")))

    assert Payment.objects.get().status == "REFUNDED"
    assert not Grant.objects.filter(revoked_at__isnull=True).exists()
