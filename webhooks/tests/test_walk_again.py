"""The same event again, and other events of the same payment, in any order."""

from datetime import UTC, datetime
from itertools import permutations
from typing import Any

import pytest

from billing.models import Fact, Grant, Payment
from subscriptions.models import Plan, Subscription, User
from tests.looking import contents, event_of
from tests.sending import deliver, paid, result
from webhooks import process as processing
from webhooks.models import AuditEntry, WebhookEvent

pytestmark = pytest.mark.django_db
MONDAY, TUESDAY = ("2024-01-01T10:00:00Z", "2024-01-02T10:00:00Z")


def _ended(event_id: str) -> tuple[str, str | None]:
    event = event_of(event_id)
    return event.status, event.error_code


def _of_one_payment(*statuses: str, **fields: Any) -> list[dict[str, Any]]:
    return [
        paid(event_id=status, status=status, external_payment_id="p", **fields)
        for status in statuses
    ]


def test_the_same_event_again_changes_nothing(buyer: User, monthly: Plan) -> None:
    payload = paid()
    first = deliver(payload)
    before = contents()

    again = deliver(payload)

    assert result(again) == (200, "duplicate")
    assert again.json()["event_id"] == first.json()["event_id"]
    event = WebhookEvent.objects.get()
    assert (event.status, event.deliveries) == ("PROCESSED", 2)
    WebhookEvent.objects.update(deliveries=1)
    after = contents()
    # That it came again is worth a line in the audit, and nothing else.
    told, known = after.pop("webhooks.AuditEntry"), before.pop("webhooks.AuditEntry")
    assert [row[2] for row in told if row not in known] == ["event_received", "event_deduped"]
    assert after == before


def test_without_an_event_id_the_bytes_tell_a_duplicate(buyer: User, monthly: Plan) -> None:
    payload = paid(event_id=None)

    assert result(deliver(payload)) == (200, "processed")
    assert result(deliver(payload)) == (200, "duplicate")
    other_bytes = {**payload, "comment": "sent by hand"}
    assert result(deliver(other_bytes)) == (200, "processed")

    assert list(WebhookEvent.objects.order_by("pk").values_list("deliveries", flat=True)) == [2, 1]
    assert (Payment.objects.count(), Grant.objects.count()) == (1, 1)


def test_two_events_may_carry_the_same_bytes_but_for_their_id(buyer: User, monthly: Plan) -> None:
    """An event with an id is known by it alone."""
    payload = paid()
    deliver(payload)
    WebhookEvent.objects.update(external_event_id="another-id")

    assert result(deliver(payload)) == (200, "processed")
    assert WebhookEvent.objects.count() == 2


def test_a_redelivery_of_a_parked_event_processes_it(monthly: Plan) -> None:
    payload = paid()
    assert result(deliver(payload)) == (200, "unlinked")
    # Appears without a signal, as by an import straight into the table.
    User.objects.bulk_create([User(email="buyer@example.com")])

    answer = deliver(payload)

    assert result(answer) == (200, "processed")
    event = WebhookEvent.objects.get()
    assert (event.status, event.error_code, event.deliveries) == ("PROCESSED", None, 2)
    assert event.next_attempt_at is None
    assert Grant.objects.count() == 1


@pytest.mark.parametrize("status", ["RECEIVED", "VALIDATED"])
def test_a_redelivery_finishes_what_a_dead_process_left(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """Edge case: the server died between payment and subscription."""
    payload = paid()
    with monkeypatch.context() as patch:
        patch.setattr(processing, "finish", _die)
        with pytest.raises(SystemExit):
            deliver(payload)
    event = WebhookEvent.objects.get()
    assert event.status == "VALIDATED"
    assert not Grant.objects.exists()
    WebhookEvent.objects.update(status=status)

    assert result(deliver(payload)) == (200, "processed")

    assert Grant.objects.count() == 1
    assert result(deliver(payload)) == (200, "duplicate")


def _die(*_args: object, **_kwargs: object) -> None:
    raise SystemExit


def test_a_redelivery_of_a_failed_attempt_processes_it(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    payload = paid()
    with monkeypatch.context() as patch:
        patch.setattr(processing, "settle", _break)
        assert result(deliver(payload)) == (200, "failed_retryable")
    event = WebhookEvent.objects.get()
    assert (event.status, event.error_code) == ("FAILED_RETRYABLE", "PROCESSING_ERROR")
    assert not Payment.objects.exists(), "the effects of a failed attempt are rolled back"

    assert result(deliver(payload)) == (200, "processed")
    assert WebhookEvent.objects.get().error_code is None


def _break(*_args: object, **_kwargs: object) -> None:
    raise RuntimeError("card 4111111111111111")


@pytest.mark.parametrize(
    "fields", [{"amount": "1"}, {"plan_id": "no-such-plan"}, {"status": "failed"}, {"test": True}]
)
def test_a_redelivery_of_a_finished_event_is_a_duplicate(
    buyer: User, monthly: Plan, fields: dict[str, Any]
) -> None:
    payload = paid(**fields)
    deliver(payload)
    before = WebhookEvent.objects.get()

    assert result(deliver(payload)) == (200, "duplicate")

    after = WebhookEvent.objects.get()
    assert (after.status, after.error_code) == (before.status, before.error_code)
    assert after.deliveries == 2


def test_another_event_of_an_applied_payment_grants_nothing_more(
    buyer: User, monthly: Plan
) -> None:
    """Threat 26."""
    deliver(paid(external_payment_id="p"))
    end = Subscription.objects.get().current_period_end

    assert result(deliver(paid(external_payment_id="p"))) == (200, "processed")

    assert (Payment.objects.count(), Grant.objects.count()) == (1, 1)
    assert Subscription.objects.get().current_period_end == end
    assert Fact.objects.count() == 2
    assert AuditEntry.objects.filter(action="payment_applied").count() == 1


def test_another_event_that_brings_the_email_settles_the_parked_ones(
    buyer: User, monthly: Plan
) -> None:
    for event_id in ("first", "second"):
        payload = paid(event_id=event_id, external_payment_id="p", email=None)
        assert result(deliver(payload)) == (200, "unlinked")

    answer = deliver(paid(event_id="third", external_payment_id="p"))

    assert result(answer) == (200, "processed")
    for event_id in ("first", "second", "third"):
        assert _ended(event_id) == ("PROCESSED", None)
        assert event_of(event_id).next_attempt_at is None
    assert Grant.objects.count() == 1
    assert Payment.objects.get().user == buyer


def test_a_pending_event_may_bring_the_email_too(buyer: User, monthly: Plan) -> None:
    deliver(paid(event_id="paid", external_payment_id="p", email=None))

    answer = deliver(paid(event_id="told", external_payment_id="p", status="pending"))

    assert result(answer) == (200, "processed")
    assert _ended("paid") == ("PROCESSED", None)
    assert Grant.objects.count() == 1


def test_a_later_event_does_not_replace_the_email_of_the_first(buyer: User, monthly: Plan) -> None:
    deliver(paid(external_payment_id="p", email="nobody@example.com"))

    assert result(deliver(paid(external_payment_id="p"))) == (200, "unlinked")
    assert Payment.objects.get().email == "nobody@example.com"


def test_a_second_event_that_tells_the_right_amount_settles_the_review(
    buyer: User, monthly: Plan
) -> None:
    deliver(paid(event_id="first", external_payment_id="p", amount=None))
    assert _ended("first") == ("FAILED_FINAL", "AMOUNT_MISMATCH")

    assert result(deliver(paid(event_id="second", external_payment_id="p"))) == (200, "processed")

    assert _ended("first") == ("PROCESSED", None)
    assert event_of("first").review == "RESOLVED"


@pytest.mark.parametrize(("first", "second"), [(MONDAY, TUESDAY), (TUESDAY, MONDAY), (None, None)])
def test_a_second_event_with_another_amount_goes_to_review(
    buyer: User, monthly: Plan, first: str | None, second: str | None
) -> None:
    deliver(paid(external_payment_id="p", paid_at=first))

    answer = deliver(paid(event_id="odd", external_payment_id="p", amount="5", paid_at=second))

    assert result(answer) == (200, "failed_final")
    assert _ended("odd") == ("FAILED_FINAL", "AMOUNT_MISMATCH")
    assert event_of("odd").review == "OPEN"
    assert Grant.objects.count() == 1


@pytest.mark.parametrize("order", list(permutations(["failed", "paid", "pending"])))
def test_a_success_wins_over_tries_that_failed(
    buyer: User, monthly: Plan, order: tuple[str, ...]
) -> None:
    for payload in _of_one_payment(*order):
        deliver(payload)

    assert Payment.objects.get().status == "SUCCEEDED"
    assert Grant.objects.count() == 1
    assert _ended("paid") == ("PROCESSED", None)


def test_a_failure_told_after_the_success_is_out_of_order(buyer: User, monthly: Plan) -> None:
    for payload in _of_one_payment("paid", "failed"):
        deliver(payload)

    assert _ended("failed") == ("IGNORED", "OUT_OF_ORDER")
    assert Payment.objects.get().status == "SUCCEEDED"


@pytest.mark.parametrize("times", [(None, None), (MONDAY, TUESDAY), (TUESDAY, MONDAY)])
def test_a_payment_after_its_refund_grants_nothing(
    buyer: User, monthly: Plan, times: tuple[str | None, str | None]
) -> None:
    refund_at, paid_at = times
    (refund,) = _of_one_payment("refunded", occurred_at=refund_at)
    (payment,) = _of_one_payment("paid", occurred_at=paid_at)

    assert result(deliver(refund)) == (200, "ignored")
    assert result(deliver(payment)) == (200, "ignored")

    assert _ended("paid") == ("IGNORED", "OUT_OF_ORDER")
    assert Payment.objects.get().status == "REFUNDED"
    assert not Grant.objects.exists()


@pytest.mark.parametrize(
    ("status", "code", "payment_status"),
    [
        ("partially_refunded", "PARTIAL_REFUND", "SUCCEEDED"),
        ("disputed", "DISPUTED", "SUCCEEDED"),
    ],
)
def test_what_takes_an_applied_payment_back_is_for_a_person(
    buyer: User, monthly: Plan, status: str, code: str, payment_status: str
) -> None:
    for payload in _of_one_payment("paid", status):
        deliver(payload)

    assert Payment.objects.get().status == payment_status
    assert _ended(status) == ("PROCESSED", code)
    assert event_of(status).review == "OPEN"


@pytest.mark.parametrize("order", list(permutations(["paid", "canceled"])))
def test_a_cancel_that_came_after_the_success_wins_in_any_order(
    buyer: User, monthly: Plan, order: tuple[str, ...]
) -> None:
    times = {"paid": MONDAY, "canceled": TUESDAY}
    for status in order:
        (payload,) = _of_one_payment(status, occurred_at=times[status])
        deliver(payload)

    payment = Payment.objects.get()
    assert payment.status == "CANCELED"
    assert payment.canceled_at == datetime(2024, 1, 2, 10, tzinfo=UTC)
    # What was given before the cancel came is taken back.
    assert Grant.objects.count() == (order[0] == "paid")
    assert not Grant.objects.filter(revoked_at=None).exists()
    assert not WebhookEvent.objects.filter(review="OPEN").exists()


@pytest.mark.parametrize("order", list(permutations(["paid", "canceled"])))
def test_a_cancel_that_came_before_the_success_loses_in_any_order(
    buyer: User, monthly: Plan, order: tuple[str, ...]
) -> None:
    times = {"paid": TUESDAY, "canceled": MONDAY}
    for status in order:
        (payload,) = _of_one_payment(status, occurred_at=times[status])
        deliver(payload)

    assert Payment.objects.get().status == "SUCCEEDED"
    assert Grant.objects.count() == 1
    assert not WebhookEvent.objects.filter(review="OPEN").exists()


@pytest.mark.parametrize("order", list(permutations(["paid", "canceled"])))
@pytest.mark.parametrize(
    "times", [{}, {"paid": MONDAY}, {"canceled": MONDAY}, {"paid": MONDAY, "canceled": MONDAY}]
)
def test_a_cancel_nobody_can_date_is_for_a_person(
    buyer: User, monthly: Plan, order: tuple[str, ...], times: dict[str, str]
) -> None:
    for status in order:
        (payload,) = _of_one_payment(status, occurred_at=times.get(status))
        deliver(payload)

    assert Payment.objects.get().status == "SUCCEEDED"
    assert Grant.objects.count() == 1
    event = WebhookEvent.objects.get(review="OPEN")
    assert (event.external_event_id, event.error_code) == (order[1], "CANCEL_UNCONFIRMED")
