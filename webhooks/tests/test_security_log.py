"""What security hears of, in a volume that an attacker cannot drive up."""

from __future__ import annotations

from typing import Any

import pytest

from subscriptions.models import Plan, User
from tests.logs import Lines, read_logs
from tests.looking import counted
from tests.sending import deliver, paid, send, sign_with_time, to_bytes
from webhooks import security_log

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def fresh_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(security_log, "_budget", security_log._Budget())


def _security(logs: Lines) -> list[dict[str, Any]]:
    return [line for line in logs if line["logger"] == "security"]


def test_security_hears_of_a_forged_request() -> None:
    with read_logs() as logs:
        send(to_bytes(paid()), REMOTE_ADDR="192.0.2.7")
    (line,) = _security(logs)
    assert (line["event"], line["level"]) == ("invalid_signature", "warning")
    assert (line["provider"], line["source"]) == ("tilda", "192.0.2.7")


def test_security_hears_of_an_expired_time() -> None:
    body = to_bytes(paid())
    with read_logs() as logs:
        send(body, sign_with_time(body, 1))
    assert [line["event"] for line in _security(logs)] == ["timestamp_expired"]


def test_security_hears_of_a_wrong_amount_and_of_a_conflict(buyer: User, monthly: Plan) -> None:
    payload = paid(amount="1")
    with read_logs() as logs:
        deliver(payload)
        deliver({**payload, "amount": "2"})
        deliver(paid())
    assert [line["event"] for line in _security(logs)] == ["amount_mismatch", "conflict"]
    assert all(line["webhook_event_id"] for line in _security(logs))


def test_security_does_not_believe_a_forwarded_address() -> None:
    with read_logs() as logs:
        send(to_bytes(paid()), {"X-Forwarded-For": "203.0.113.9"}, REMOTE_ADDR="192.0.2.7")
    assert "203.0.113.9" not in logs.text


def test_a_flood_is_counted_but_not_written_down(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1000.0]
    monkeypatch.setattr("webhooks.security_log.time.monotonic", lambda: clock[0])
    kind, other = security_log.Kind.INVALID_SIGNATURE, security_log.Kind.CONFLICT
    before = counted("webhook_security_events_total", kind=kind.value)

    with read_logs() as logs:
        for _ in range(security_log.LINES_PER_MINUTE + 40):
            security_log.note(kind)
        security_log.note(other)
        clock[0] += 60
        security_log.note(kind)

    assert len(logs.named("invalid_signature")) == security_log.LINES_PER_MINUTE + 1
    assert len(logs.named("conflict")) == 1, "each kind has a budget of its own"
    (told,) = logs.named("security_lines_left_out")
    assert (told["kind"], told["number"]) == ("invalid_signature", 40)
    counted_now = counted("webhook_security_events_total", kind=kind.value)
    assert counted_now == before + security_log.LINES_PER_MINUTE + 41
