"""A provider's file had a mistake and was mended: what was read wrongly is read again."""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import pytest

from billing.facts import FactKind
from billing.models import Grant, OutboxMessage, Payment, Refund
from subscriptions.models import Plan, User
from tests.factories import UserFactory
from tests.people import ANNA
from tests.sending import deliver, paid
from webhooks import linking, review
from webhooks.models import WebhookEvent
from webhooks.providers import tilda

pytestmark = pytest.mark.django_db

Mapping = Callable[[str, FactKind | None], None]


@pytest.fixture
def mapping(monkeypatch: pytest.MonkeyPatch) -> Mapping:
    """Set what a status word is read as; None: it is not known."""

    def change(word: str, kind: FactKind | None) -> None:
        if kind is None:
            monkeypatch.delitem(tilda.KIND_BY_STATUS, word)
        else:
            monkeypatch.setitem(tilda.KIND_BY_STATUS, word, kind)

    return change


def _reprocess(event_id: str) -> tuple[str, str | None]:
    event = WebhookEvent.objects.get(external_event_id=event_id)
    review.reprocess(event, ANNA, "the mapping was mended")
    event.refresh_from_db()
    return event.status, event.error_code


def test_a_payment_that_was_missed_is_applied(buyer: User, monthly: Plan, mapping: Mapping) -> None:
    mapping("paid", FactKind.PENDING)
    deliver(paid(event_id="e"))
    assert Payment.objects.get().status == "PROCESSING"
    mapping("paid", FactKind.PAID)

    assert _reprocess("e") == ("PROCESSED", None)
    assert _reprocess("e") == ("PROCESSED", None)

    assert Grant.objects.count() == 1


def test_the_last_reading_counts_also_when_it_is_the_first_one_again(
    buyer: User, monthly: Plan, mapping: Mapping
) -> None:
    deliver(paid(event_id="e", email="late@example.com"))
    mapping("paid", FactKind.FAILED)
    assert _reprocess("e") == ("IGNORED", "NON_SUCCESS_STATUS")
    mapping("paid", FactKind.PAID)

    assert _reprocess("e") == ("FAILED_RETRYABLE", "USER_MISSING")

    assert Payment.objects.get().status == "SUCCEEDED"
    assert Payment.objects.get().facts.count() == 3
    # It succeeded twice, and both times others hear of it.
    told = OutboxMessage.objects.filter(type="PaymentSucceeded").order_by("seq")
    assert len(told) == 2
    assert OutboxMessage.objects.order_by("-seq")[0].data["payment"]["status"] == "SUCCEEDED"


def test_a_refund_that_was_none_leaves_no_refund_behind(
    buyer: User, monthly: Plan, mapping: Mapping
) -> None:
    deliver(paid(event_id="e", external_payment_id="p"))
    mapping("reversed", FactKind.PARTIALLY_REFUNDED)
    deliver(
        paid(event_id="r", external_payment_id="p", status="reversed", refund_id="a", amount="90")
    )
    assert Refund.objects.count() == 1
    mapping("reversed", FactKind.PENDING)
    WebhookEvent.objects.filter(external_event_id="r").update(status="IGNORED")

    _reprocess("r")

    assert not Refund.objects.exists()
    assert Payment.objects.get().amount_refunded == 0


def test_what_turns_out_to_be_no_payment_is_taken_out_of_the_books(
    monthly: Plan, mapping: Mapping
) -> None:
    mapping("authorized", FactKind.PAID)
    deliver(paid(event_id="e", external_payment_id="p", status="authorized"))
    mapping("authorized", None)

    assert _reprocess("e") == ("IGNORED", "NON_SUCCESS_STATUS")
    assert _reprocess("e") == ("IGNORED", "NON_SUCCESS_STATUS")
    UserFactory.create(email="buyer@example.com")
    deliver(paid(external_payment_id="p", status="failed"))
    linking.sweep_linkable_payments()

    assert Payment.objects.get().status == "FAILED"
    assert not Grant.objects.exists()


def test_what_was_given_for_no_payment_is_taken_back(
    buyer: User, monthly: Plan, mapping: Mapping
) -> None:
    mapping("authorized", FactKind.PAID)
    deliver(paid(event_id="e", status="authorized"))
    mapping("authorized", None)
    WebhookEvent.objects.update(status="FAILED_FINAL", review="OPEN")

    assert _reprocess("e") == ("IGNORED", "NON_SUCCESS_STATUS")
    assert Grant.objects.get().revoked_at is not None
    payment = Payment.objects.get()
    assert (payment.status, payment.subscription_applied_at) == ("RECEIVED", None)
    newest = OutboxMessage.objects.order_by("-seq")[0]
    assert newest.data["payment"]["status"] == "RECEIVED"


def test_a_cancel_that_was_none_no_longer_stands_against_the_success(
    monthly: Plan, mapping: Mapping
) -> None:
    first, second = "2026-01-01T10:00:00Z", "2026-01-01T11:00:00Z"
    mapping("pending", FactKind.CANCELED)
    later = paid(event_id="c", external_payment_id="p", status="pending", occurred_at=second)
    deliver(later)
    deliver(paid(event_id="e", external_payment_id="p", paid_at=first))
    assert Payment.objects.get().status == "CANCELED"
    mapping("pending", FactKind.PENDING)

    assert _reprocess("c") == ("FAILED_RETRYABLE", "USER_MISSING")
    UserFactory.create(email="buyer@example.com")
    linking.sweep_linkable_payments()

    assert Grant.objects.count() == 1


def test_reading_it_the_same_way_again_adds_no_fact(monthly: Plan) -> None:
    deliver(paid(event_id="e", email="late@example.com"))

    assert _reprocess("e") == ("FAILED_RETRYABLE", "USER_MISSING")

    assert Payment.objects.get().facts.count() == 1


def test_an_event_that_could_not_be_read_meets_the_dismissal_of_its_payment(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*_args: object) -> NoReturn:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(tilda.Tilda, "parse", break_down)
        deliver(paid(external_payment_id="p"))
    deliver(paid(event_id="e", external_payment_id="p", amount="1"))
    review.dismiss(WebhookEvent.objects.get(external_event_id="e"), ANNA, "fraud")
    unread = WebhookEvent.objects.get(error_code="MALFORMED")

    review.reprocess(unread, ANNA, "the parser was mended")

    unread.refresh_from_db()
    assert unread.error_code == "PAYMENT_DISMISSED"
    assert not Grant.objects.exists()
