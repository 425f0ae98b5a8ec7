"""What callers get to read, and the deliveries that become no payment."""

from typing import Any
from uuid import UUID

import pytest
from pytest_django import Settings

from billing.models import Fact, Grant, Payment
from subscriptions.models import Plan, User
from tests.looking import NOTHING, effects
from tests.sending import deliver, paid, result, send, to_bytes
from webhooks.models import WebhookEvent

pytestmark = pytest.mark.django_db

MALFORMED = [
    b"",
    b"not json",
    b"[]",
    b'"a string"',
    b"{",
    b'{"status": "paid"}',
    b'{"external_payment_id": "p"}',
    b'{"external_payment_id": "", "status": "paid"}',
    b'{"external_payment_id": "  ", "status": "paid"}',
    b'{"external_payment_id": null, "status": "paid"}',
    b'{"external_payment_id": "p", "status": ""}',
    b'{"external_payment_id": "p", "status": null}',
    b'{"external_payment_id": "p", "status": "paid", "paid_at": "yesterday"}',
    b'{"external_payment_id": "p", "status": "paid", "paid_at": 1704067200}',
    b'{"external_payment_id": "p", "status": "paid", "currency": "RUBLE"}',
    b'{"external_payment_id": "p", "status": "paid", "test": "yes"}',
]


def _is_error(answer: Any, status: int, code: str) -> bool:
    told = answer.json()
    assert set(told) == {"error", "request_id"}
    assert set(told["error"]) == {"code", "message"}
    assert told["request_id"]
    assert answer["Content-Type"] == "application/json"
    return (answer.status_code, told["error"]["code"]) == (status, code)


def test_an_answer_names_the_event_and_the_request(buyer: User, monthly: Plan) -> None:
    answer = deliver(paid())

    told = answer.json()
    assert set(told) == {"status", "event_id", "request_id"}
    assert UUID(told["event_id"]) == WebhookEvent.objects.get().pk
    assert str(UUID(told["request_id"])) == told["request_id"]
    assert answer["Content-Type"] == "application/json"


def test_every_request_has_an_id_of_its_own(buyer: User, monthly: Plan) -> None:
    payload = paid()
    assert deliver(payload).json()["request_id"] != deliver(payload).json()["request_id"]


@pytest.mark.parametrize("url", ["/webhooks/payments", "/webhooks/tilda"])
@pytest.mark.parametrize("slash", ["", "/"])
def test_it_answers_with_and_without_the_trailing_slash(
    buyer: User, monthly: Plan, url: str, slash: str
) -> None:
    assert result(deliver(paid(), url=url + slash)) == (200, "processed")


def test_both_urls_are_one_provider(buyer: User, monthly: Plan) -> None:
    payload = paid()
    deliver(payload, url="/webhooks/payments")
    assert result(deliver(payload, url="/webhooks/tilda")) == (200, "duplicate")


@pytest.mark.parametrize("slug", ["no-such-provider", "paypal", "base", "signing", "0"])
def test_an_unknown_provider_is_not_found(slug: str) -> None:
    assert _is_error(deliver(paid(), url=f"/webhooks/{slug}"), 404, "NOT_FOUND")
    assert effects() == NOTHING


@pytest.mark.parametrize("path", ["/webhooks/", "/webhooks/Tilda", "/webhooks/tilda/x"])
def test_what_is_no_webhook_url_is_answered_in_the_same_shape(path: str) -> None:
    assert _is_error(deliver(paid(), url=path), 404, "NOT_FOUND")


def test_a_provider_without_a_secret_is_off(settings: Settings) -> None:
    """Threat 3: never fail-open. An empty key must not match an empty secret either."""
    settings.WEBHOOK_SECRETS = {}
    assert _is_error(deliver(paid()), 404, "NOT_FOUND")
    settings.WEBHOOK_SECRETS = {"TILDA": ()}
    assert _is_error(send(to_bytes(paid()), {"X-Api-Key": ""}), 404, "NOT_FOUND")
    assert effects() == NOTHING


@pytest.mark.parametrize("body", MALFORMED)
def test_it_keeps_nothing_malformed_from_just_anybody(body: bytes) -> None:
    assert _is_error(send(body), 400, "MALFORMED")
    assert not WebhookEvent.objects.exists()


@pytest.mark.parametrize("body", MALFORMED)
def test_it_keeps_what_a_proven_sender_said_for_review(body: bytes) -> None:
    assert _is_error(deliver(body), 400, "MALFORMED")

    event = WebhookEvent.objects.get()
    assert (event.status, event.error_code) == ("FAILED_FINAL", "MALFORMED")
    assert (event.review, event.next_attempt_at) == ("OPEN", None)
    assert bytes(event.raw_body or b"") == body
    assert not Payment.objects.exists()


def test_a_malformed_delivery_that_is_repeated_is_kept_once() -> None:
    deliver(b"not json")
    deliver(b"not json")
    assert WebhookEvent.objects.get().deliveries == 2


@pytest.mark.parametrize(
    "other",
    [
        {"amount": "991.00"},
        {"currency": "USD"},
        {"external_payment_id": "another-payment"},
        {"status": "refunded"},
        {"merchant_uid": "another-order"},
        {"plan_id": "yearly"},
        {"refund_id": "r-1"},
        {"amount_refunded": "5"},
        {"test": True},
    ],
)
def test_the_same_id_with_other_money_is_a_conflict(
    buyer: User, monthly: Plan, other: dict[str, Any]
) -> None:
    """Threat 25."""
    first = paid()
    deliver(first)
    first_event, before = WebhookEvent.objects.get(), effects()

    answer = deliver({**first, **other})

    assert result(answer) == (409, "conflict")
    kept = WebhookEvent.objects.get(conflict_of=first_event)
    assert answer.json()["event_id"] == str(kept.pk)
    assert (kept.status, kept.error_code) == ("FAILED_FINAL", "PAYLOAD_CONFLICT")
    assert (kept.review, kept.next_attempt_at) == ("OPEN", None)
    assert effects() == {**before, "events": 2}
    first_event.refresh_from_db()
    assert (first_event.status, first_event.error_code) == ("PROCESSED", None)


def test_a_conflict_is_kept_once_however_often_it_comes(buyer: User, monthly: Plan) -> None:
    first = paid()
    deliver(first)
    for _ in range(3):
        assert result(deliver({**first, "amount": "1"})) == (409, "conflict")
    assert result(deliver({**first, "amount": "2"})) == (409, "conflict")

    deliveries = WebhookEvent.objects.filter(conflict_of__isnull=False).order_by("pk")
    assert list(deliveries.values_list("deliveries", flat=True)) == [3, 1]
    assert result(deliver(first)) == (200, "duplicate"), "the first stands"
    assert Grant.objects.count() == 1


def test_a_conflict_before_the_first_was_processed_does_not_process_it(monthly: Plan) -> None:
    first = paid()
    assert result(deliver(first)) == (200, "unlinked")
    User.objects.bulk_create([User(email="buyer@example.com")])

    assert result(deliver({**first, "amount": "1"})) == (409, "conflict")

    assert Fact.objects.count() == 1
    assert not Grant.objects.exists()


def test_a_payment_under_the_id_of_something_else_is_a_conflict(buyer: User, monthly: Plan) -> None:
    """None before and some now is other money."""
    deliver({"event_type": "customer.created", "event_id": "e"})
    assert result(deliver(paid(event_id="e"))) == (409, "conflict")
    assert not Payment.objects.exists()


@pytest.mark.parametrize(
    "other",
    [
        {"comment": "resent by hand"},
        {"amount": "990"},
        {"amount": 990.0},
        {"currency": "rub"},
        {"email": "Buyer@example.com"},
        {"event_type": "payment.paid"},
    ],
)
def test_the_same_id_with_cosmetic_changes_is_a_duplicate(
    buyer: User, monthly: Plan, other: dict[str, Any]
) -> None:
    """Threat 25."""
    first = paid()
    deliver(first)

    assert result(deliver({**first, **other})) == (200, "duplicate")
    assert WebhookEvent.objects.get().deliveries == 2


@pytest.mark.parametrize("other", [{}, {"amount": "1"}])
def test_fingerprints_of_an_older_recipe_are_not_compared(
    buyer: User, monthly: Plan, other: dict[str, Any]
) -> None:
    """After a release that changes the recipe, every resend would look like a conflict."""
    first = paid()
    deliver(first)
    WebhookEvent.objects.update(fingerprint="0:made-by-an-older-release")

    assert result(deliver({**first, **other})) == (200, "duplicate")


def test_an_unexpected_error_tells_nothing(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*_args: object) -> None:
        raise RuntimeError("the secret is hunter2")

    monkeypatch.setattr("webhooks.inbox.store", break_down)

    answer = deliver(paid())

    assert _is_error(answer, 500, "INTERNAL_ERROR")
    assert b"hunter2" not in answer.content


@pytest.mark.parametrize("accept", ["", "text/html", "application/xml", "*/*;q=0", "nonsense"])
def test_it_does_not_mind_what_callers_want_to_read(
    buyer: User, monthly: Plan, accept: str
) -> None:
    body = to_bytes(paid())
    answer = send(body, {"Accept": accept, "X-Api-Key": "test-secret"})
    assert result(answer) == (200, "processed")
    assert answer["Content-Type"] == "application/json"
