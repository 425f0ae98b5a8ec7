"""What a webhook costs the database, and that it is safe there before anything else happens."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.db.models import F
from django.db.models.functions import Now
from django.test.utils import CaptureQueriesContext

from billing.models import Grant, Payment
from subscriptions.models import Plan, User
from tests.looking import database_parameters
from tests.sending import deliver, paid, result
from webhooks import process as processing
from webhooks import views
from webhooks.models import WebhookEvent
from webhooks.recovery import recover

pytestmark = pytest.mark.django_db(transaction=True)
_DUE_IN = F("next_attempt_at") - Now()


def _statements(payload: dict[str, Any], *, expect: str) -> list[str]:
    connection.ensure_connection()
    with CaptureQueriesContext(connection) as captured:
        assert result(deliver(payload)) == (200, expect)
    return [query["sql"] for query in captured.captured_queries]


def _listed(statements: list[str]) -> str:
    return f"{len(statements)} statements:\n" + "\n".join(
        f"{number}. {' '.join(sql.split())[:200]}" for number, sql in enumerate(statements, 1)
    )


def test_a_fresh_payment_costs_at_most_14_statements(buyer: User, monthly: Plan) -> None:
    statements = _statements(paid(), expect="processed")

    assert len(statements) <= 14, _listed(statements)
    # The count is only worth something when the transaction's own statements are in it.
    assert {"BEGIN", "COMMIT"} <= set(statements), _listed(statements)


def test_a_duplicate_costs_at_most_4_statements(buyer: User, monthly: Plan) -> None:
    payload = paid()
    deliver(payload)

    statements = _statements(payload, expect="duplicate")

    assert 1 <= len(statements) <= 4, _listed(statements)


def test_the_second_payment_of_a_subscription_costs_no_more(buyer: User, monthly: Plan) -> None:
    deliver(paid())

    statements = _statements(paid(), expect="processed")

    assert len(statements) <= 14, _listed(statements)


def test_the_event_is_committed_before_it_is_processed(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever looks from another connection while we process sees the event, and no effects."""
    seen: list[tuple[int, int]] = []

    def look_and_go_on(*args: Any, **kwargs: Any) -> Any:
        with psycopg.connect(**database_parameters()) as other:
            seen.extend(
                other.execute(
                    "SELECT (SELECT count(*) FROM webhooks_webhookevent),"
                    " (SELECT count(*) FROM billing_payment)"
                )
            )
        return processing.process(*args, **kwargs)

    monkeypatch.setattr(views, "process", look_and_go_on)

    assert result(deliver(paid())) == (200, "processed")
    assert seen == [(1, 0)]


def test_an_event_whose_processing_was_lost_is_picked_up(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(views, "process", _die)
        with pytest.raises(SystemExit):
            deliver(paid())
    event = WebhookEvent.objects.annotate(due_in=_DUE_IN).get()
    assert event.status == "VALIDATED"
    assert timedelta(seconds=30) < event.due_in <= timedelta(seconds=60)

    assert not recover(for_s=10), "it is not due yet: its request may still be at work"
    assert not Payment.objects.exists()
    WebhookEvent.objects.update(next_attempt_at=Now() - timedelta(seconds=1))
    assert recover(for_s=10) == {"processed": 1}

    event.refresh_from_db()
    assert (event.status, event.attempts) == ("PROCESSED", 2)
    assert Grant.objects.count() == 1
    assert not recover(for_s=10)


def _die(*_args: object, **_kwargs: object) -> None:
    raise SystemExit
