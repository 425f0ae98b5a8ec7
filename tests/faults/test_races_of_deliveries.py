"""Deliveries that arrive at the same moment, over HTTP, at a real web server."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from django.db import connection

from billing.models import Grant, Payment
from subscriptions.models import Plan, User
from tests.faults import broken
from tests.faults.servers import FAULTY, Web, web_server
from tests.faults.truths import assert_applied_once, assert_periods_adjacent
from tests.sending import paid
from webhooks.models import WebhookEvent

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("event_id", ["evt-fifty", None], ids=["by event id", "by payload hash"])
def test_it_grants_once_when_fifty_identical_deliveries_arrive_at_once(
    event_id: str | None, web: Web, buyer: User, monthly: Plan
) -> None:
    payload = paid(event_id=event_id)

    answers = web.send_all([payload] * 50, at_once=50)

    assert Counter(answer.status_code for answer in answers) == {200: 50}
    results = Counter(answer.json()["status"] for answer in answers)
    assert results == {"processed": 1, "duplicate": 49}
    assert assert_applied_once(payload).deliveries == 50
    assert_periods_adjacent(buyer, number=1)


@pytest.mark.breaks_invariants("applied_payment_has_its_event")
def test_many_rows_of_one_event_appear_when_nothing_but_a_look_guards_the_inbox(
    buyer: User, monthly: Plan, tmp_path: Path
) -> None:
    """Negative control: look-then-insert instead of the unique key."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT pg_get_indexdef(indexrelid) FROM pg_index"
            " WHERE indexrelid = 'event_unique_by_event_id'::regclass"
        )
        (create_index,) = cursor.fetchone()
        cursor.execute("DROP INDEX event_unique_by_event_id")
    environment = {broken.VARIABLE: broken.LOOK_THEN_INSERT, "WEB_THREADS": "8"}
    try:
        with web_server(tmp_path, module=FAULTY, **environment) as web:
            web.send_all([paid(event_id="evt-control", external_payment_id="pay")] * 8, at_once=8)

        assert WebhookEvent.objects.filter(external_event_id="evt-control").count() > 1
        # The payment's own guards do not need the inbox's.
        assert Grant.objects.count() == 1
    finally:
        WebhookEvent.objects.all().delete()
        with connection.cursor() as cursor:
            cursor.execute(create_index)


def test_it_grants_once_when_ten_events_of_one_payment_arrive_at_once(
    web: Web, buyer: User, monthly: Plan
) -> None:
    payloads = [paid(external_payment_id="pay-of-ten") for _ in range(10)]

    answers = web.send_all(payloads, at_once=10)

    assert [answer.json()["status"] for answer in answers] == ["processed"] * 10
    assert set(WebhookEvent.objects.values_list("status", flat=True)) == {"PROCESSED"}
    assert WebhookEvent.objects.count() == 10
    assert Grant.objects.get().payment == Payment.objects.get()
    assert_periods_adjacent(buyer, number=1)


@pytest.mark.parametrize("number", [2, 8])
def test_it_adds_adjacent_periods_when_payments_of_one_subscription_arrive_at_once(
    number: int, web: Web, buyer: User, monthly: Plan
) -> None:
    payloads = [paid() for _ in range(number)]

    answers = web.send_all(payloads, at_once=number)

    assert [answer.json()["status"] for answer in answers] == ["processed"] * number
    for payload in payloads:
        assert_applied_once(payload)
    assert_periods_adjacent(buyer, number=number)
