"""What people decide binds, can be taken back, and is told truthfully."""

from __future__ import annotations

from typing import Any

import pytest
from django.db.models.functions import Now

from billing.models import Grant, Payment
from subscriptions.models import Plan, User
from tests.factories import PlanPriceFactory, UserFactory
from tests.looking import event_of, state_of
from tests.people import ANNA
from tests.sending import deliver, paid, result
from webhooks import finishing, linking, review
from webhooks.audit import BY_INTAKE
from webhooks.models import AuditEntry, WebhookEvent
from webhooks.recovery import recover

pytestmark = pytest.mark.django_db


def _actions() -> set[str]:
    return set(AuditEntry.objects.values_list("action", flat=True))


def test_a_run_that_fails_leaves_a_dismissal_alone(buyer: User, monthly: Plan) -> None:
    deliver(paid(event_id="e", amount="1"))
    review.dismiss(event_of("e"), ANNA, "refunded at the provider")

    finishing.record_failure(event_of("e"), BY_INTAKE, RuntimeError("lock timeout"))

    assert state_of("e") == ("FAILED_FINAL", "AMOUNT_MISMATCH", "DISMISSED")
    WebhookEvent.objects.filter(next_attempt_at__isnull=False).update(next_attempt_at=Now())
    recover(for_s=5)
    assert not Grant.objects.exists()


def test_a_run_that_fails_leaves_an_open_review_in_the_queue(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    deliver(paid(event_id="e", amount="1"))

    def break_down(*_args: object, **_kwargs: object) -> Any:
        raise RuntimeError

    with monkeypatch.context() as patch:
        patch.setattr("webhooks.process.settle", break_down)
        outcome = review.apply_anyway(event_of("e"), ANNA, "a discount")

    assert outcome.code == "PROCESSING_ERROR"
    assert state_of("e") == ("FAILED_FINAL", "AMOUNT_MISMATCH", "OPEN")
    assert "review_overruled" not in _actions()
    review.apply_anyway(event_of("e"), ANNA, "a discount")
    assert state_of("e") == ("PROCESSED", None, "RESOLVED")


def test_a_dismissal_can_be_taken_back(buyer: User, monthly: Plan) -> None:
    deliver(paid(event_id="e", amount="1"))
    review.dismiss(event_of("e"), ANNA, "fraud")

    with pytest.raises(review.CannotDecide):
        review.apply_anyway(event_of("e"), ANNA, "not yet")
    review.reopen(event_of("e"), ANNA, "it was not")
    review.apply_anyway(event_of("e"), ANNA, "it was not")

    assert Grant.objects.count() == 1
    assert {"review_dismissed", "review_reopened", "review_overruled"} <= _actions()
    with pytest.raises(review.CannotDecide):
        review.reopen(event_of("e"), ANNA, "again")


def test_a_dismissal_binds_the_payment_not_only_the_event(buyer: User, monthly: Plan) -> None:
    deliver(paid(event_id="e", external_payment_id="p", amount="500"))
    review.dismiss(event_of("e"), ANNA, "fraud")
    monthly.prices.all().delete()
    PlanPriceFactory.create(plan=monthly, amount="500")

    answer = deliver(paid(event_id="f", external_payment_id="p", amount="500"))

    assert result(answer) == (200, "failed_final")
    assert state_of("f") == ("FAILED_FINAL", "PAYMENT_DISMISSED", "OPEN")
    deliver(paid(event_id="g", external_payment_id="p", status="pending", amount="500"))
    assert not Grant.objects.exists()
    review.apply_anyway(event_of("f"), ANNA, "looked at it again")
    assert Grant.objects.count() == 1
    assert state_of("e")[2] == "DISMISSED"


def test_a_conflict_can_be_believed_after_all(buyer: User, monthly: Plan) -> None:
    deliver(paid(event_id="e", external_payment_id="p", status="captured"))
    payload = paid(event_id="e", external_payment_id="p")
    assert deliver(payload).status_code == 409
    conflict = WebhookEvent.objects.get(conflict_of__isnull=False)

    review.reprocess(conflict, ANNA)
    assert not Grant.objects.exists()
    review.apply_anyway(conflict, ANNA, "the provider reuses ids")

    assert Grant.objects.count() == 1
    conflict.refresh_from_db()
    assert (conflict.status, conflict.review) == ("PROCESSED", "RESOLVED")


def test_linking_what_did_not_succeed_is_refused_and_leaves_no_trace(monthly: Plan) -> None:
    deliver(paid(status="failed", email=None))

    with pytest.raises(review.CannotDecide, match="succeeded"):
        review.link(Payment.objects.get(), UserFactory.create(), ANNA, "called")

    assert not AuditEntry.objects.exclude(actor="intake").exists()


def test_linking_a_dismissed_payment_says_what_to_do(monthly: Plan) -> None:
    deliver(paid(event_id="e", email=None))
    WebhookEvent.objects.update(status="FAILED_FINAL", review="OPEN", next_attempt_at=None)
    review.dismiss(event_of("e"), ANNA, "refunded")

    with pytest.raises(review.CannotDecide, match="Reopen"):
        review.link(Payment.objects.get(), UserFactory.create(), ANNA, "called")


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("refunded", "PARTIAL_REFUND"),
        ("partially_refunded", "PARTIAL_REFUND"),
        ("disputed", "DISPUTED"),
    ],
)
def test_what_takes_something_back_from_an_applied_payment_is_seen_by_a_person(
    buyer: User, monthly: Plan, status: str, code: str
) -> None:
    deliver(paid(external_payment_id="p", paid_at="2026-01-01T10:00:00Z"))

    later = {"occurred_at": "2026-01-02T10:00:00Z", "amount_refunded": "90"}
    deliver(paid(event_id="back", external_payment_id="p", status=status, **later))

    assert state_of("back") == ("PROCESSED", code, "OPEN")
    assert Payment.objects.get().amount_refunded == 90


@pytest.mark.parametrize("order", [("pending", "paid"), ("paid", "pending")])
def test_the_success_says_who_gets_it_and_which_plan(
    buyer: User, monthly: Plan, order: tuple[str, ...]
) -> None:
    events = {
        "pending": paid(
            external_payment_id="p", status="pending", email="typo@example.com", plan_id="nope"
        ),
        "paid": paid(external_payment_id="p", plan_id="monthly"),
    }
    for name in order:
        deliver(events[name])

    assert Grant.objects.filter(subscription__user=buyer).count() == 1
    assert Payment.objects.get().email == "buyer@example.com"


def test_what_was_paid_again_after_a_cancel_counts(buyer: User, monthly: Plan) -> None:
    for status, minute in (("canceled", 2), ("paid", 1), ("paid", 3)):
        at = f"2026-01-01T10:0{minute}:00Z"
        deliver(paid(external_payment_id="p", status=status, occurred_at=at))

    assert Payment.objects.get().status == "SUCCEEDED"
    assert Grant.objects.count() == 1


def test_a_malformed_event_that_is_mended_later_waits_for_its_user_like_any_other(
    monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    from webhooks.providers.tilda import Tilda

    def break_down(*_args: object) -> Any:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(Tilda, "parse", break_down)
        assert deliver(paid(email="late@example.com")).status_code == 400
    event = WebhookEvent.objects.get()
    assert (event.error_code, event.external_payment_id) == ("MALFORMED", None)

    review.reprocess(event, ANNA, "mended")
    WebhookEvent.objects.update(status="FAILED_FINAL", review="OPEN", next_attempt_at=None)
    UserFactory.create(email="late@example.com")

    assert linking.sweep_linkable_payments() == 1
    assert Grant.objects.count() == 1


def test_a_conflict_that_was_believed_waits_for_its_user_like_any_other(monthly: Plan) -> None:
    deliver(paid(event_id="e", external_payment_id="p", status="captured"))
    deliver(paid(event_id="e", external_payment_id="p", email="late@example.com"))
    conflict = WebhookEvent.objects.get(conflict_of__isnull=False)

    review.apply_anyway(conflict, ANNA, "the provider reuses ids")
    assert AuditEntry.objects.get(action="review_overruled").reason == "the provider reuses ids"
    UserFactory.create(email="late@example.com")

    assert linking.sweep_linkable_payments() == 1
    assert Grant.objects.count() == 1


@pytest.mark.parametrize(
    ("status", "code"), [("disputed", "DISPUTED"), ("partially_refunded", "PARTIAL_REFUND")]
)
def test_what_came_before_the_grant_is_heard_too(monthly: Plan, status: str, code: str) -> None:
    deliver(paid(event_id="e", external_payment_id="p", email="late@example.com"))
    deliver(paid(external_payment_id="p", status=status, amount_refunded="90"))
    UserFactory.create(email="late@example.com")
    linking.sweep_linkable_payments()

    assert state_of("e") == ("PROCESSED", code, "OPEN")
    assert Grant.objects.count() == 1


def test_all_of_it_refunded_bit_by_bit_is_refunded(buyer: User, monthly: Plan) -> None:
    deliver(paid(external_payment_id="p", status="partially_refunded", amount_refunded="990"))

    assert result(deliver(paid(external_payment_id="p"))) == (200, "ignored")
    assert Payment.objects.get().status == "REFUNDED"


def test_what_only_waits_for_a_user_can_be_dismissed(monthly: Plan) -> None:
    deliver(paid(event_id="e", email="late@example.com"))

    review.dismiss(event_of("e"), ANNA, "refunded at the provider")
    UserFactory.create(email="late@example.com")
    linking.sweep_linkable_payments()

    assert state_of("e") == ("FAILED_FINAL", "USER_MISSING", "DISMISSED")
    assert not Grant.objects.exists()


def test_a_dismissal_binds_whatever_it_was_dismissed_for(buyer: User, monthly: Plan) -> None:
    deliver(paid(event_id="e", external_payment_id="p", email="other@example.com"))
    WebhookEvent.objects.update(
        status="FAILED_FINAL", error_code="RETRIES_EXHAUSTED", review="OPEN", next_attempt_at=None
    )
    review.dismiss(event_of("e"), ANNA, "fraud")

    deliver(paid(event_id="f", external_payment_id="p", occurred_at="2020-01-01T00:00:00Z"))

    assert state_of("f") == ("FAILED_FINAL", "PAYMENT_DISMISSED", "OPEN")


@pytest.mark.parametrize("field", ["email", "plan_id"])
def test_successes_that_name_different_purchases_go_to_review(
    buyer: User, monthly: Plan, field: str
) -> None:
    UserFactory.create(email="other@example.com")
    other = {"email": "other@example.com", "plan_id": "yearly"}[field]
    deliver(paid(event_id="e", external_payment_id="p", plan_id="monthly"))

    deliver(paid(event_id="f", external_payment_id="p", **{"plan_id": "monthly", field: other}))

    assert state_of("f") == ("FAILED_FINAL", "FACTS_DISAGREE", "OPEN")
    assert Grant.objects.filter(subscription__user=buyer).count() == 1
    review.apply_anyway(event_of("f"), ANNA, "looked at it")
    assert state_of("f") == ("PROCESSED", None, "RESOLVED")
    assert Grant.objects.count() == 1


def test_a_failed_reprocess_of_an_ignored_event_is_a_failure(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*_args: object, **_kwargs: object) -> Any:
        raise RuntimeError

    deliver(paid(event_id="e", status="failed"))
    with monkeypatch.context() as patch:
        patch.setattr("webhooks.process.settle", break_down)
        outcome = review.reprocess(event_of("e"), ANNA)

    assert (outcome.result, outcome.code) == ("failed_retryable", "PROCESSING_ERROR")
    assert state_of("e") == ("IGNORED", "NON_SUCCESS_STATUS", None)


def test_the_sweep_finds_users_that_nobody_announced(monthly: Plan) -> None:
    deliver(paid(event_id="e", email="Bulk@example.com"))
    deliver(paid(event_id="dismissed", email="bulk@example.com"))
    WebhookEvent.objects.update(status="FAILED_FINAL", review="OPEN", next_attempt_at=None)
    review.dismiss(event_of("dismissed"), ANNA, "refunded")
    User.objects.bulk_create([User(email="bulk@EXAMPLE.com")])

    assert linking.sweep_linkable_payments() == 1
    assert linking.sweep_linkable_payments() == 0

    assert state_of("e") == ("PROCESSED", None, "RESOLVED")
    assert state_of("dismissed")[2] == "DISMISSED"


def test_a_resend_is_processed_from_the_bytes_that_were_stored(monthly: Plan) -> None:
    UserFactory.create(email="second@example.com")
    first = paid(email="first@example.com")
    deliver(first)

    answer = deliver({**first, "email": "second@example.com"})

    assert result(answer) == (200, "unlinked")
    assert not Grant.objects.exists()


def test_zero_refunded_is_no_reason_to_refuse_a_payment(buyer: User, monthly: Plan) -> None:
    assert result(deliver(paid(amount_refunded=0))) == (200, "processed")
    assert result(deliver(paid(amount_refunded="0.00"))) == (200, "processed")
    assert result(deliver(paid(status="failed", amount=0))) == (200, "ignored")
