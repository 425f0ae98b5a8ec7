"""A dispute is for a person; lost it is a refund, won it is nothing."""

from __future__ import annotations

from typing import Any

import pytest

from billing.models import Grant, Payment
from subscriptions.models import Plan, Subscription, User
from tests.looking import event_of, state_of
from tests.people import ANNA
from tests.sending import deliver, paid, result
from webhooks import review
from webhooks.linking import link_waiting_payments
from webhooks.models import AuditEntry, WebhookEvent

pytestmark = pytest.mark.django_db


def _tell(status: str, **fields: Any) -> tuple[int, str]:
    told = {"event_id": status, **fields}
    return result(deliver(paid(external_payment_id="p", status=status, **told)))


@pytest.fixture
def grant(buyer: User, monthly: Plan) -> Grant:
    _tell("paid")
    return Grant.objects.get()


def test_a_dispute_takes_nothing_and_asks_a_person(grant: Grant) -> None:
    assert _tell("disputed") == (200, "processed")

    assert state_of("disputed") == ("PROCESSED", "DISPUTED", "OPEN")
    assert Payment.objects.get().status == "SUCCEEDED"
    assert Grant.objects.get().revoked_at is None


def test_a_dispute_that_is_lost_is_a_refund(grant: Grant) -> None:
    _tell("disputed")

    assert _tell("dispute_lost") == (200, "processed")

    payment = Payment.objects.get()
    assert payment.status == "REFUNDED"
    assert payment.amount_refunded == 990
    assert Grant.objects.get().revoked_at is not None
    assert Subscription.objects.get().status == "INACTIVE"
    # Nobody need look at the dispute any more.
    assert state_of("disputed")[2] == "RESOLVED"
    assert state_of("dispute_lost") == ("PROCESSED", None, None)


def test_a_dispute_that_is_won_is_nothing(grant: Grant) -> None:
    _tell("disputed")

    assert _tell("dispute_won") == (200, "ignored")

    assert Payment.objects.get().status == "SUCCEEDED"
    after = Grant.objects.get()
    assert (after.starts_at, after.ends_at, after.revoked_at) == (
        grant.starts_at,
        grant.ends_at,
        None,
    )
    assert state_of("disputed")[2] == "RESOLVED"


def test_a_dispute_that_is_over_asks_nobody(grant: Grant) -> None:
    _tell("dispute_won")

    _tell("disputed")

    assert state_of("disputed")[2] is None


def test_a_dispute_without_a_grant_asks_nobody(monthly: Plan) -> None:
    _tell("disputed")

    assert state_of("disputed") == ("IGNORED", "NON_SUCCESS_STATUS", None)


@pytest.mark.parametrize("lost_first", [True, False])
def test_a_dispute_won_after_it_was_lost_opens_reinstate(grant: Grant, lost_first: bool) -> None:
    kinds = ["dispute_lost", "dispute_won"]
    for kind in kinds if lost_first else reversed(kinds):
        _tell(kind)

    asking = WebhookEvent.objects.get(error_code="REINSTATE_DUE", review="OPEN")
    assert Grant.objects.get().revoked_at is not None
    assert Payment.objects.get().status == "REFUNDED"
    review.reinstate(asking, ANNA, "won after all")

    again = Grant.objects.get()
    assert (again.pk, again.revoked_at) == (grant.pk, None)
    assert (again.starts_at, again.ends_at) == (grant.starts_at, grant.ends_at)
    assert Subscription.objects.get().status == "ACTIVE"
    assert not WebhookEvent.objects.filter(review="OPEN").exists()


def test_what_a_person_took_back_over_a_dispute_can_be_reinstated_once_it_is_won(
    grant: Grant,
) -> None:
    _tell("disputed")
    review.revoke(event_of("disputed"), ANNA, "looks like fraud")
    assert Grant.objects.get().revoked_because == "staff"
    assert Payment.objects.get().status == "SUCCEEDED"

    _tell("dispute_won")
    assert state_of("dispute_won") == ("PROCESSED", "REINSTATE_DUE", "OPEN")
    review.reinstate(event_of("dispute_won"), ANNA, "it was not")

    again = Grant.objects.get()
    assert (again.pk, again.revoked_at, again.ends_at) == (grant.pk, None, grant.ends_at)
    actions = AuditEntry.objects.filter(actor="staff:anna").order_by("at", "pk")
    assert [(row.action, row.reason) for row in actions if row.action.startswith("payment")] == [
        ("payment_revoked", "looks like fraud"),
        ("payment_reinstated", "it was not"),
    ]


def test_what_a_person_reinstated_stays_when_the_old_loss_is_told_again(grant: Grant) -> None:
    lost, won = "2026-01-02T10:00:00Z", "2026-01-03T10:00:00Z"
    _tell("dispute_lost", occurred_at=lost)
    _tell("dispute_won", occurred_at=won)
    review.reinstate(event_of("dispute_won"), ANNA, "won after all")

    _tell("dispute_lost", event_id="again", occurred_at=lost)

    assert Grant.objects.get().revoked_at is None


@pytest.mark.parametrize("lost_at", [None, "2026-01-04T10:00:00Z"])
def test_a_second_loss_takes_back_what_a_person_reinstated(
    grant: Grant, lost_at: str | None
) -> None:
    _tell("dispute_lost", occurred_at="2026-01-02T10:00:00Z" if lost_at else None)
    _tell("dispute_won", occurred_at="2026-01-03T10:00:00Z" if lost_at else None)
    review.reinstate(event_of("dispute_won"), ANNA, "won after all")

    _tell("dispute_lost", event_id="again", occurred_at=lost_at)

    assert Grant.objects.get().revoked_at is not None


def test_a_refund_after_a_reinstatement_is_still_a_refund(grant: Grant) -> None:
    _tell("dispute_lost")
    _tell("dispute_won")
    review.reinstate(event_of("dispute_won"), ANNA, "won after all")

    _tell("refunded")

    assert Grant.objects.get().revoked_at is not None
    assert Payment.objects.get().status == "REFUNDED"


def test_a_dispute_can_be_kept(grant: Grant) -> None:
    _tell("disputed")

    review.keep(event_of("disputed"), ANNA, "an old customer")
    with pytest.raises(review.CannotDecide):
        review.shorten(event_of("disputed"), ANNA, "no")

    assert state_of("disputed")[2] == "RESOLVED"
    assert Grant.objects.get().revoked_at is None


def test_a_partial_refund_that_came_with_a_dispute_is_not_forgotten(monthly: Plan) -> None:
    """Both came before the user did; one event can ask only one thing."""
    _tell("disputed", email="late@example.com")
    told = {"amount": "330", "refund_id": "a", "email": "late@example.com"}
    _tell("partially_refunded", **told)
    _tell("paid", email="late@example.com")
    user = User.objects.create_user("late@example.com")
    link_waiting_payments(user)
    assert Grant.objects.count() == 1
    assert WebhookEvent.objects.filter(review="OPEN").exists()

    _tell("dispute_won", email="late@example.com")

    asked = WebhookEvent.objects.filter(review="OPEN").values_list("error_code", flat=True)
    assert list(asked) == ["PARTIAL_REFUND"]
