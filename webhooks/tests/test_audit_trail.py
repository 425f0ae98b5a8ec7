"""What happened to an event can be read from the audit: what, when, who, why."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from billing.models import Grant, Payment
from subscriptions.models import Plan, Subscription, User
from tests.factories import OrderFactory, UserFactory
from tests.people import ANNA
from tests.refusing import refused
from tests.sending import deliver, paid
from webhooks import audit, review, tasks
from webhooks.linking import link_payments_of_order
from webhooks.models import AuditEntry, WebhookEvent
from webhooks.recovery import recover

pytestmark = pytest.mark.django_db

LONG_AGO = Now() - timedelta(hours=1)


def _trail(event_id: str = "e") -> list[tuple[str, str]]:
    event = WebhookEvent.objects.get(external_event_id=event_id, conflict_of__isnull=True)
    entries = AuditEntry.objects.filter(event_id=event.pk).order_by("at", "pk")
    return [(entry.action, entry.actor) for entry in entries]


def _actions(event_id: str = "e") -> list[str]:
    return [action for action, _ in _trail(event_id)]


def _break_down(*_args: object, **_kwargs: object) -> Any:
    raise RuntimeError


BEGINNING = ["event_received", "event_inserted", "processing_attempt_started"]


def test_an_event_that_is_applied(buyer: User, monthly: Plan) -> None:
    deliver(paid(event_id="e"))

    assert sorted(_actions()) == sorted(
        [*BEGINNING, "payment_linked", "payment_applied", "processing_succeeded"]
    )
    assert {actor for _, actor in _trail()} == {"intake"}


@pytest.mark.parametrize("status", ["failed", "pending"])
def test_an_event_that_changes_nothing(monthly: Plan, status: str) -> None:
    deliver(paid(event_id="e", status=status))

    assert sorted(_actions()) == sorted([*BEGINNING, "processing_succeeded"])


def test_a_duplicate(buyer: User, monthly: Plan) -> None:
    payload = paid(event_id="e")
    deliver(payload)
    before = _actions()

    deliver(payload)

    assert sorted(_actions()) == sorted([*before, "event_received", "event_deduped"])


def test_a_conflict(buyer: User, monthly: Plan) -> None:
    payload = paid(event_id="e")
    deliver(payload)
    before = _actions()

    deliver({**payload, "amount": "1"})

    assert sorted(_actions()) == sorted([*before, "event_received", "conflict_detected"])


def test_an_event_that_waits_is_tried_again(buyer: User, monthly: Plan) -> None:
    deliver(paid(event_id="e", email="late@example.com"))
    assert sorted(_actions()) == sorted([*BEGINNING, "retry_scheduled"])
    User.objects.bulk_create([User(email="late@example.com")])
    WebhookEvent.objects.update(next_attempt_at=LONG_AGO)

    recover(for_s=5)

    assert [row for row in _trail() if row[1] == "recovery"] == [
        ("processing_attempt_started", "recovery"),
        ("payment_linked", "recovery"),
        ("payment_applied", "recovery"),
        ("processing_succeeded", "recovery"),
    ]


def test_an_attempt_that_fails_leaves_its_failure_and_nothing_else(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything is done, and then the last step breaks: the audit rows go with the rest."""
    real = audit.write

    def write_and_break(*entries: AuditEntry) -> None:
        real(*entries)
        if any(entry.action == "processing_succeeded" for entry in entries):
            raise RuntimeError

    monkeypatch.setattr("webhooks.finishing.audit.write", write_and_break)

    assert deliver(paid(event_id="e")).json()["status"] == "failed_retryable"

    assert sorted(_actions()) == sorted(
        [*BEGINNING, "processing_attempt_failed", "retry_scheduled"]
    )
    failed = AuditEntry.objects.get(action="processing_attempt_failed")
    assert failed.details == {"attempt": 1, "error": "RuntimeError"}
    assert not Grant.objects.exists()
    assert not Payment.objects.exists()


def test_an_attempt_that_fails_for_the_last_time_schedules_nothing(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhooks.process.settle", _break_down)
    deliver(paid(event_id="e"))
    for _ in range(20):
        WebhookEvent.objects.filter(status="FAILED_RETRYABLE").update(next_attempt_at=LONG_AGO)
        recover(for_s=5)

    event = WebhookEvent.objects.get()
    assert (event.status, event.error_code) == ("FAILED_FINAL", "RETRIES_EXHAUSTED")
    actions = _actions()
    assert actions.count("processing_attempt_started") == event.attempts
    assert actions.count("processing_attempt_failed") == event.attempts
    assert actions.count("retry_scheduled") == event.attempts - 1


def test_a_redelivery_that_is_an_attempt_says_so(buyer: User, monthly: Plan) -> None:
    payload = paid(event_id="e", email="late@example.com")
    deliver(payload)
    User.objects.bulk_create([User(email="late@example.com")])

    assert deliver(payload).json()["status"] == "processed"

    assert _actions().count("processing_attempt_started") == 2


@pytest.mark.django_db(transaction=True)
def test_the_rows_are_written_in_the_transaction_of_what_they_tell(
    buyer: User, monthly: Plan
) -> None:
    deliver(paid(event_id="e", external_payment_id="p"))
    deliver(paid(event_id="r", external_payment_id="p", status="refunded"))

    (grant,) = Grant.objects.raw("SELECT id, xmin::text::bigint AS by FROM billing_grant")
    told = {
        action: AuditEntry.objects.get(action=action).txid & 0xFFFFFFFF
        for action in ("payment_applied", "payment_revoked")
    }
    # The refund wrote the grant last.
    assert told["payment_revoked"] == grant.by  # type: ignore[attr-defined]
    assert told["payment_applied"] != told["payment_revoked"]
    inserted = AuditEntry.objects.filter(action="event_inserted")
    received = AuditEntry.objects.filter(action="event_received")
    assert {row.txid for row in inserted} == {row.txid for row in received}


def test_a_refund_says_what_it_revoked(buyer: User, monthly: Plan) -> None:
    deliver(paid(external_payment_id="p"))
    end = Subscription.objects.get().current_period_end

    deliver(paid(event_id="r", external_payment_id="p", status="refunded"))

    entry = AuditEntry.objects.get(action="payment_revoked")
    payment = Payment.objects.get()
    assert (entry.payment_id, entry.user_id) == (payment.pk, buyer.pk)
    assert entry.subscription_id == Subscription.objects.get().pk
    assert entry.details["end_before"] == end.isoformat()
    assert entry.details["end_after"] < entry.details["end_before"]


def test_an_order_that_appears_says_who_linked(buyer: User) -> None:
    deliver(paid(event_id="e", merchant_uid="late", email=None, amount="500"))
    link_payments_of_order(OrderFactory.create(user=buyer, merchant_uid="late"))

    assert {("payment_linked", "linking"), ("payment_applied", "linking")} <= set(_trail())


@pytest.mark.parametrize(
    ("prepare", "decide", "action"),
    [
        ({"amount": "1"}, review.apply_anyway, "review_overruled"),
        ({"amount": "1"}, review.dismiss, "review_dismissed"),
        ({"amount": "1"}, review.reprocess, "event_reprocessed"),
    ],
)
def test_what_a_person_does_has_their_name_and_reason(
    buyer: User, monthly: Plan, prepare: dict[str, Any], decide: Any, action: str
) -> None:
    deliver(paid(event_id="e", **prepare))

    decide(WebhookEvent.objects.get(), ANNA, "because")

    entry = AuditEntry.objects.get(action=action)
    assert (entry.actor, entry.reason) == ("staff:anna", "because")
    assert entry.event_id == WebhookEvent.objects.get().pk


def test_a_link_by_hand_and_a_reopening_too(monthly: Plan) -> None:
    deliver(paid(event_id="e", email=None))
    event = WebhookEvent.objects.get()
    review.dismiss(event, ANNA, "no")
    review.reopen(WebhookEvent.objects.get(), ANNA, "yes")
    review.link(Payment.objects.get(), UserFactory.create(), ANNA, "called")

    by_anna = [action for action, actor in _trail() if actor == "staff:anna"]
    assert set(by_anna) == {
        "review_dismissed",
        "review_reopened",
        "payment_linked",
        "payment_applied",
        "processing_succeeded",
    }


def test_expiry_and_cancelled_renewal_leave_rows(buyer: User, monthly: Plan) -> None:
    deliver(paid())
    review.cancel_renewal(Subscription.objects.get(), ANNA, "asked")
    Subscription.objects.update(current_period_end=LONG_AGO)
    assert tasks.expire_batch() == 1
    assert tasks.expire_batch() == 0

    canceled = AuditEntry.objects.get(action="subscription_canceled")
    expired = AuditEntry.objects.get(action="subscription_expired")
    assert (canceled.actor, canceled.reason, expired.actor) == ("staff:anna", "asked", "schedule")
    assert canceled.subscription_id == expired.subscription_id


def test_no_row_carries_an_email(buyer: User, monthly: Plan) -> None:
    deliver(paid(event_id="e"))
    deliver(paid(event_id="f", email="late@example.com"))

    for entry in AuditEntry.objects.all():
        assert "@" not in f"{entry.reason}{entry.details}"


def test_no_row_can_be_changed_or_deleted(buyer: User, monthly: Plan) -> None:
    deliver(paid(event_id="e"))

    for change in (
        lambda: AuditEntry.objects.update(actor="nobody"),
        lambda: AuditEntry.objects.all()._raw_delete("default"),
    ):
        with refused(by="23001"):
            change()
