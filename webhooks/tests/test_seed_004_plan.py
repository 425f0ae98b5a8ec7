"""The test plan of the connector's specification: ten times the same, retries that are logged, the
database that prevents what races would do, conflicts that are caught."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from billing.models import Grant, Payment
from subscriptions.models import Plan, Subscription, User
from tests.refusing import refused
from tests.sending import deliver, paid, result
from webhooks.models import AuditEntry, WebhookEvent
from webhooks.recovery import recover

pytestmark = pytest.mark.django_db


def _actions() -> list[str]:
    rows = AuditEntry.objects.order_by("at", "pk").values_list("action", flat=True)
    return list(rows)


def test_the_same_webhook_ten_times_is_one_row(buyer: User, monthly: Plan) -> None:
    payload = paid()

    answers = [result(deliver(payload)) for _ in range(10)]

    assert answers == [(200, "processed"), *[(200, "duplicate")] * 9]
    assert WebhookEvent.objects.get().deliveries == 10
    assert Payment.objects.count() == Grant.objects.count() == 1
    assert _actions().count("event_received") == 10
    assert _actions().count("event_inserted") == 1
    assert _actions().count("event_deduped") == 9


def test_a_failed_attempt_is_logged_and_tried_again_with_growing_delays(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*_args: object, **_kwargs: object) -> Any:
        raise RuntimeError

    delays = []
    with monkeypatch.context() as patch:
        patch.setattr("webhooks.process.settle", break_down)
        assert result(deliver(paid())) == (200, "failed_retryable")
        for _ in range(3):
            event = WebhookEvent.objects.get()
            assert event.next_attempt_at
            assert event.processed_at
            delays.append(event.next_attempt_at - event.processed_at)
            WebhookEvent.objects.update(next_attempt_at=Now() - timedelta(hours=1))
            recover(for_s=5)
    failures = AuditEntry.objects.filter(action="processing_attempt_failed")
    assert [row.details["attempt"] for row in failures.order_by("at", "pk")] == [1, 2, 3, 4]
    assert _actions().count("retry_scheduled") == 4
    assert delays == sorted(delays)

    WebhookEvent.objects.update(next_attempt_at=Now() - timedelta(hours=1))
    recover(for_s=5)

    assert WebhookEvent.objects.get().status == "PROCESSED"
    assert Grant.objects.count() == 1
    assert _actions()[-1] == "processing_succeeded"


def test_the_database_refuses_what_a_race_would_insert(buyer: User, monthly: Plan) -> None:
    payload = paid(event_id="e")
    deliver(payload)
    payment, grant = Payment.objects.get(), Grant.objects.get()

    with refused(by="event_unique_by_event_id"):
        WebhookEvent.objects.bulk_create(
            [
                WebhookEvent(
                    provider="tilda",
                    external_event_id="e",
                    payload_hash="another",
                    status="PROCESSED",
                    signature_valid=True,
                )
            ]
        )
    with refused(by="payment_unique_per_provider"):
        Payment.objects.create(
            provider="tilda", external_payment_id=payment.external_payment_id, status="SUCCEEDED"
        )
    with refused(by="billing_grant_payment_id_key"):
        Grant.objects.create(
            payment=payment,
            subscription=Subscription.objects.get(),
            plan=monthly,
            starts_at=grant.starts_at,
            ends_at=grant.ends_at,
        )


def test_another_payload_under_the_same_id_is_caught(buyer: User, monthly: Plan) -> None:
    payload = paid(event_id="e")
    deliver(payload)
    before = list(Payment.objects.values_list()), list(Grant.objects.values_list())

    assert result(deliver({**payload, "amount": "1.00"})) == (409, "conflict")

    first, conflict = WebhookEvent.objects.order_by("received_at", "pk")
    assert (conflict.conflict_of, conflict.error_code, conflict.review) == (
        first,
        "PAYLOAD_CONFLICT",
        "OPEN",
    )
    assert _actions().count("conflict_detected") == 1
    assert (list(Payment.objects.values_list()), list(Grant.objects.values_list())) == before
    # And one that differs only in form is a duplicate.
    assert result(deliver({**payload, "amount": "990.0"})) == (200, "duplicate")
