"""One JSON line per webhook, with everything an investigation starts from and nothing more."""

from __future__ import annotations

import json
import logging
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from billing.models import Payment
from subscriptions.models import Plan, Subscription, User
from tests.logs import read_logs
from tests.sending import deliver, paid, send, to_bytes
from webhooks import process as processing
from webhooks import security_log
from webhooks.models import WebhookEvent
from webhooks.recovery import recover

pytestmark = pytest.mark.django_db

FIELDS = {
    "request_id",
    "provider",
    "webhook_event_id",
    "external_event_id",
    "external_payment_id",
    "merchant_uid",
    "event_type",
    "event_key",
    "reason",
    "db_txid",
    "signature_valid",
    "incoming_status",
    "amount",
    "currency",
    "email",
    "user_id",
    "result",
    "payment_status_before",
    "payment_status_after",
    "subscription_end_before",
    "subscription_end_after",
    "subscription_applied_before",
    "subscription_applied_after",
    "event_age_ms",
    "late_webhook",
    "error_code",
    "error_message",
    "duration_ms",
}
CARD = "4111111111111111"


@pytest.fixture(autouse=True)
def fresh_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security_log, "_budget", security_log._Budget())


def _delivered(payload: dict[str, Any] | bytes) -> tuple[dict[str, Any], Any]:
    """The one line of a delivery, and its answer."""
    with read_logs() as logs:
        answer = deliver(payload)
    (line,) = logs.named("webhook")
    return line, answer


def test_a_processed_webhook_leaves_exactly_one_line(buyer: User, monthly: Plan) -> None:
    with read_logs() as logs:
        deliver(paid())
    assert len(logs) == 1


def test_the_line_of_a_payment_has_every_field(buyer: User, monthly: Plan) -> None:
    paid_at = timezone.now() - timedelta(hours=1)
    payload = paid(event_type="t", merchant_uid="m", paid_at=paid_at.isoformat())

    line, answer = _delivered(payload)

    assert set(line) >= FIELDS
    event, payment = WebhookEvent.objects.get(), Payment.objects.get()
    subscription = Subscription.objects.get()
    expected = {
        "event": "webhook",
        "level": "info",
        "request_id": answer.json()["request_id"],
        "provider": "tilda",
        "webhook_event_id": str(event.pk),
        "external_event_id": payload["event_id"],
        "external_payment_id": payload["external_payment_id"],
        "merchant_uid": "m",
        "event_type": "t",
        "event_key": f"tilda:{payload['event_id']}",
        "signature_valid": True,
        "incoming_status": "paid",
        "amount": "990.00",
        "currency": "RUB",
        "email": "buyer@example.com",
        "user_id": str(buyer.pk),
        "result": "processed",
        "reason": "processed",
        "payment_status_before": None,
        "payment_status_after": "SUCCEEDED",
        "subscription_end_after": subscription.current_period_end.isoformat(),
        "subscription_applied_before": None,
        "subscription_applied_after": payment.subscription_applied_at.isoformat(),  # type: ignore[union-attr]
        "late_webhook": False,
        "error_code": None,
        "error_message": None,
        "http_status": 200,
    }
    assert {name: line[name] for name in expected} == expected
    assert line["subscription_end_before"] < line["subscription_end_after"]
    assert 3_600_000 <= line["event_age_ms"] < 3_700_000
    assert line["duration_ms"] > 0
    assert int(line["db_txid"]) > 0


def test_without_an_event_id_the_key_is_the_hash(buyer: User, monthly: Plan) -> None:
    line, _ = _delivered(paid(event_id=None))
    assert line["event_key"] == f"tilda:{WebhookEvent.objects.get().payload_hash}"
    assert line["event_age_ms"] is None


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"status": "failed"}, {"result": "ignored", "error_code": "NON_SUCCESS_STATUS"}),
        ({"status": "odd"}, {"result": "ignored", "incoming_status": "odd"}),
        ({"test": True}, {"result": "ignored", "reason": "TEST_MODE"}),
        ({"email": None}, {"result": "unlinked", "error_code": "UNLINKED_PAYMENT"}),
        ({"email": "nobody@example.com"}, {"result": "unlinked", "reason": "USER_MISSING"}),
        ({"amount": "1"}, {"result": "failed_final", "error_code": "AMOUNT_MISMATCH"}),
        ({"plan_id": "none"}, {"result": "failed_final", "error_code": "PLAN_UNKNOWN"}),
    ],
)
def test_the_line_tells_the_result_and_the_reason(
    buyer: User, monthly: Plan, fields: dict[str, Any], expected: dict[str, Any]
) -> None:
    line, _ = _delivered(paid(**fields))
    assert set(line) >= FIELDS
    assert {name: line[name] for name in expected} == expected
    assert line["subscription_applied_after"] is None


def test_the_line_of_a_duplicate(buyer: User, monthly: Plan) -> None:
    payload = paid()
    deliver(payload)
    line, _ = _delivered(payload)
    assert set(line) >= FIELDS
    assert line["result"] == "duplicate"
    assert line["webhook_event_id"] == str(WebhookEvent.objects.get().pk)


def test_the_line_of_another_event_of_the_payment(buyer: User, monthly: Plan) -> None:
    deliver(paid(external_payment_id="p"))
    line, _ = _delivered(paid(external_payment_id="p"))
    assert line["payment_status_before"] == "SUCCEEDED"
    assert line["subscription_applied_before"] == line["subscription_applied_after"] is not None


def test_a_late_webhook_is_marked(buyer: User, monthly: Plan) -> None:
    week_ago, day_ago = (timezone.now() - timedelta(days=days) for days in (7, 0.99))
    line, _ = _delivered(paid(paid_at=week_ago.isoformat()))
    assert line["late_webhook"] is True
    assert line["event_age_ms"] // 86_400_000 == 7
    line, _ = _delivered(paid(paid_at=day_ago.isoformat()))
    assert line["late_webhook"] is False


def test_the_line_of_a_failed_attempt(
    buyer: User, monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*_args: object, **_kwargs: object) -> None:
        raise RuntimeError(f"card {CARD}")

    monkeypatch.setattr(processing, "settle", break_down)
    with read_logs() as logs:
        deliver(paid())
    (line,) = logs.named("webhook")
    assert (line["result"], line["error_code"]) == ("failed_retryable", "PROCESSING_ERROR")
    (error,) = logs.named("processing_failed")
    assert error["exception"] == "RuntimeError"
    assert any("break_down" in frame for frame in error["frames"])
    assert CARD not in logs.text


@pytest.mark.parametrize(
    ("body", "headers", "code", "valid"),
    [
        (to_bytes(paid()), {}, "INVALID_SIGNATURE", False),
        (b"nonsense", {}, "MALFORMED", False),
        (b"nonsense", {"X-Api-Key": "test-secret"}, "MALFORMED", True),
        (b"", {"Content-Encoding": "gzip"}, "UNSUPPORTED_ENCODING", None),
    ],
)
def test_a_refused_delivery_leaves_one_line_too(
    body: bytes, headers: dict[str, str], code: str, valid: bool | None
) -> None:
    with read_logs() as logs:
        answer = send(body, headers)
    (line,) = logs.named("webhook")
    assert set(line) >= FIELDS
    assert (line["error_code"], line["signature_valid"]) == (code, valid)
    assert line["http_status"] == answer.status_code
    assert line["request_id"] == answer.json()["request_id"]
    assert {other["logger"] for other in logs if other is not line} <= {"security"}


def test_a_stored_event_that_ended_final_says_so_also_when_it_is_malformed() -> None:
    line, _ = _delivered(b"nonsense")
    assert line["webhook_event_id"] == str(WebhookEvent.objects.get().pk)
    assert line["result"] == "failed_final"


def test_an_unknown_provider_leaves_one_line_with_no_name_of_the_callers() -> None:
    with read_logs() as logs:
        send(b"", url="/webhooks/whatever-they-like")
    (line,) = logs
    assert (line["provider"], line["error_code"]) == ("unknown", "NOT_FOUND")
    assert "whatever" not in logs.text


def test_a_recovered_event_leaves_a_line_as_well(monthly: Plan) -> None:
    deliver(paid(email="nobody@example.com"))
    WebhookEvent.objects.update(next_attempt_at="2024-01-01T00:00:00Z")
    with read_logs() as logs:
        recover(for_s=10)
    (line,) = logs.named("webhook")
    assert set(line) >= FIELDS - {"request_id"}
    assert (line["result"], line["incoming_status"]) == ("unlinked", "paid")


@pytest.mark.parametrize("status", ["paid", "failed"])
def test_61_the_payload_is_never_logged(buyer: User, monthly: Plan, status: str) -> None:
    payload = paid(status=status, card=CARD, customer={"name": "Ivan Secret"}, key="hunter2")
    with read_logs() as logs:
        deliver(payload)
        deliver(payload)
        send(to_bytes(payload))
        deliver({**payload, "amount": "1"})
        deliver(to_bytes(payload) + b"}")
    assert len(logs.named("webhook")) == 5
    for secret in (CARD, "Ivan Secret", "hunter2", "test-secret"):
        assert secret not in logs.text


@pytest.mark.parametrize(
    "name", ["external_payment_id", "event_id", "merchant_uid", "event_type", "plan_id", "status"]
)
@pytest.mark.parametrize(
    "evil", ["a\r\nb", 'a\n{"event": "webhook"}', "a\x1b[31mred", "a\u2028b", "a\u202eb", "a\x85b"]
)
def test_60_control_characters_in_ids_are_encoded(
    buyer: User, monthly: Plan, name: str, evil: str
) -> None:
    with read_logs() as logs:
        deliver(paid(**{name: evil}))
    # Each line of the text was JSON, and there was one.
    (line,) = logs.named("webhook")
    assert logs.text.isascii()
    assert not any(ord(character) < 32 for character in logs.text.rstrip("\n"))
    if name != "plan_id":
        logged = {"status": "incoming_status", "event_id": "external_event_id"}.get(name, name)
        assert line[logged] == evil


@pytest.mark.parametrize(
    ("table", "condition"),
    [
        ("webhooks_webhookevent", "status <> 'PROCESSED'"),
        ("billing_payment", "email IS NULL"),
        ("webhooks_auditentry", "action <> 'processing_succeeded'"),
    ],
)
def test_61_an_error_that_quotes_a_row_is_not_quoted_further(
    buyer: User, monthly: Plan, table: str, condition: str
) -> None:
    """PostgreSQL says "Failing row contains (…)" with the payload in it."""
    _add_constraint(table, condition)

    with read_logs() as logs:
        deliver(paid(card=CARD, external_payment_id="quoted-id"))

    (line,) = logs.named("webhook")
    assert line["error_code"] == "PROCESSING_ERROR"
    assert line["error_message"] == "IntegrityError 23514 quotes_the_row"
    assert WebhookEvent.objects.get().error_message == line["error_message"]
    assert CARD not in logs.text
    assert "Failing row" not in logs.text
    assert logs.text.count("quoted-id") == 1, "only in the line's own field"


def test_61_an_error_at_the_door_is_not_quoted_either(buyer: User, monthly: Plan) -> None:
    _add_constraint("webhooks_webhookevent", "provider = 'nobody'")
    with read_logs() as logs:
        answer = deliver(paid(card=CARD, external_payment_id="quoted-id"))
    assert answer.status_code == 503
    assert CARD not in logs.text + answer.content.decode()
    assert "Failing row" not in logs.text + answer.content.decode()


def _add_constraint(table: str, condition: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            f"ALTER TABLE {table} ADD CONSTRAINT quotes_the_row CHECK ({condition}) NOT VALID"
        )


def test_lines_of_libraries_are_json_too() -> None:
    with read_logs() as logs:
        logging.getLogger("some.library").error("it said: %s", "no", exc_info=ValueError(CARD))
    assert logs[0]["event"] == "it said: no"
    assert logs[0]["exception"] == "ValueError"
    assert CARD not in json.dumps(logs)
