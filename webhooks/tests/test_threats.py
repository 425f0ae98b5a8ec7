"""Who is calling: threats 1 to 12. The numbers are those of the list of threats."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pytest_django import Settings

from billing.models import Grant
from subscriptions.models import Plan, User
from tests.looking import NOTHING, effects
from tests.sending import SECRET, deliver, paid, result, send, sign, sign_with_time, to_bytes
from webhooks import providers
from webhooks.models import WebhookEvent
from webhooks.providers import tilda

pytestmark = pytest.mark.django_db
NOW_S = 1_700_000_000


@pytest.fixture
def fixed_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time by which signed times are judged."""
    monkeypatch.setattr(tilda, "time", SimpleNamespace(time=lambda: float(NOW_S)))


def _wrong_proofs(body: bytes) -> dict[str, dict[str, str]]:
    right = sign(body)["X-Webhook-Signature"]
    return {
        "nothing": {},
        "empty signature": {"X-Webhook-Signature": ""},
        "blank signature": {"X-Webhook-Signature": "  "},
        "only a comma": {"X-Webhook-Signature": ","},
        "truncated": {"X-Webhook-Signature": right[:-1]},
        "too long": {"X-Webhook-Signature": right + "0"},
        "another secret": sign(body, "another-secret"),
        "an empty secret": sign(body, ""),
        "another body": sign(body + b" "),
        "not hex": {"X-Webhook-Signature": "é" * 64},
        "with its algorithm's name": {"X-Webhook-Signature": f"sha256={right}"},
        "a wrong key": {"X-Api-Key": "another-secret"},
        "an empty key": {"X-Api-Key": ""},
        "half a key": {"X-Api-Key": SECRET[:-1]},
        "a key as signature": {"X-Webhook-Signature": SECRET},
        "a wrong signature beside the right key": {
            "X-Webhook-Signature": "0" * 64,
            "X-Api-Key": SECRET,
        },
        "a time that is not signed": {"X-Webhook-Timestamp": "1700000000", **sign(body)},
    }


@pytest.mark.parametrize("wrong", _wrong_proofs(b""))
def test_1_who_does_not_prove_himself_is_refused(buyer: User, monthly: Plan, wrong: str) -> None:
    body = to_bytes(paid())

    answer = send(body, _wrong_proofs(body)[wrong])

    assert result(answer) == (401, "INVALID_SIGNATURE")
    assert effects() == NOTHING
    sample = WebhookEvent.objects.get()
    assert (sample.status, sample.error_code) == ("FAILED_FINAL", "INVALID_SIGNATURE")
    assert (sample.signature_valid, sample.next_attempt_at) == (False, None)
    assert sample.source_ip == "127.0.0.1"


def test_1_a_forged_request_says_nothing_of_what_we_know(buyer: User, monthly: Plan) -> None:
    body = to_bytes(paid())
    deliver(body)

    known, unknown = send(body), send(to_bytes(paid()))

    assert known.json()["error"] == unknown.json()["error"]
    assert WebhookEvent.objects.get(signature_valid=True).deliveries == 1


def test_2_a_forged_request_does_not_make_the_real_one_a_duplicate(
    buyer: User, monthly: Plan
) -> None:
    payload = paid()
    body = to_bytes(payload)
    assert result(send(body)) == (401, "INVALID_SIGNATURE")
    assert result(send(to_bytes({**payload, "amount": "1"}))) == (401, "INVALID_SIGNATURE")

    assert result(deliver(body)) == (200, "processed")

    assert Grant.objects.count() == 1
    assert result(send(body)) == (401, "INVALID_SIGNATURE")
    assert result(deliver(body)) == (200, "duplicate")


def test_2_it_holds_for_events_without_an_id_too(buyer: User, monthly: Plan) -> None:
    body = to_bytes(paid(event_id=None))
    send(body)
    assert result(deliver(body)) == (200, "processed")


@pytest.mark.parametrize(
    ("changed", "refused"),
    [
        ({}, False),
        ({"SECRET_KEY": ""}, True),
        ({"SECRET_KEY": "x" * 49}, True),
        ({"SECRET_KEY": "django-insecure-" + "x" * 50}, True),
        ({"ACCEPT_TEST_PAYMENTS": "1"}, True),
        ({"ACCEPT_TEST_PAYMENTS": "1", "DEBUG": "1"}, False),
        ({"SECRET_KEY": "", "DEBUG": "1"}, False),
        ({"DEBUG": "perhaps"}, True),
    ],
)
def test_3_production_refuses_to_start_unsafely(changed: dict[str, str], refused: bool) -> None:
    env = {**os.environ, "SECRET_KEY": "k" * 50, "DEBUG": "0", **changed}

    run = subprocess.run(
        [sys.executable, "-c", "import config.settings"],
        env=env,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (run.returncode != 0) is refused, run.stderr
    assert ("ImproperlyConfigured" in run.stderr) is refused


def test_5_the_bytes_received_are_what_is_signed(buyer: User, monthly: Plan) -> None:
    payload = paid()
    signed = json.dumps(payload).encode()
    sent = json.dumps(payload, separators=(",", ":")).encode()
    assert json.loads(signed) == json.loads(sent)

    assert result(send(sent, sign(signed))) == (401, "INVALID_SIGNATURE")
    assert effects() == NOTHING


@pytest.mark.parametrize("age_s", [-299, -1, 0, 299, 300, -300])
def test_6_a_signed_time_within_the_window_passes(
    fixed_clock: None, buyer: User, monthly: Plan, age_s: int
) -> None:
    body = to_bytes(paid())
    assert result(send(body, sign_with_time(body, NOW_S - age_s))) == (200, "processed")


@pytest.mark.parametrize("age_s", [-301, 301, 86_400])
def test_6_a_signed_time_outside_the_window_is_refused(
    fixed_clock: None, buyer: User, monthly: Plan, age_s: int
) -> None:
    body = to_bytes(paid())

    answer = send(body, sign_with_time(body, NOW_S - age_s))

    assert result(answer) == (400, "TIMESTAMP_EXPIRED")
    assert effects() == NOTHING
    sample = WebhookEvent.objects.get()
    assert (sample.error_code, sample.signature_valid) == ("TIMESTAMP_EXPIRED", False)
    # The provider's next try is signed anew, and is no duplicate of this one.
    assert result(send(body, sign_with_time(body, NOW_S))) == (200, "processed")


@pytest.mark.parametrize(
    "timestamp",
    [
        # 1700000000 in Arabic digits, which int() reads.
        "\u0661\u0667" + "\u0660" * 8,
        "1_700_000_000",
        " 1700000000",
        "1700000000\u00a0",
        "1700000000.0",
        "+1700000000",
        "-1",
        "",
        str(10**20),
        "9" * 400,
        "NaN",
        "0x6553f100",
    ],
)
def test_7_a_signed_time_is_plain_digits(
    fixed_clock: None, buyer: User, monthly: Plan, timestamp: str
) -> None:
    body = to_bytes(paid())

    answer = send(body, sign_with_time(body, timestamp))

    assert result(answer) == (400, "TIMESTAMP_EXPIRED")
    assert effects() == NOTHING


def test_8_a_replay_within_the_window_is_a_duplicate(
    fixed_clock: None, buyer: User, monthly: Plan
) -> None:
    body = to_bytes(paid())
    headers = sign_with_time(body, NOW_S)

    assert result(send(body, headers)) == (200, "processed")
    assert result(send(body, headers)) == (200, "duplicate")
    assert result(send(body, sign_with_time(body, NOW_S + 1))) == (200, "duplicate")
    assert Grant.objects.count() == 1


def test_10_during_a_rotation_both_secrets_pass(buyer: User, monthly: Plan) -> None:
    assert result(deliver(paid(), secret="test-secret")) == (200, "processed")
    assert result(deliver(paid(), secret="second-secret")) == (200, "processed")
    assert result(send(to_bytes(paid()), {"X-Api-Key": "second-secret"})) == (200, "processed")

    key_ids = WebhookEvent.objects.order_by("pk").values_list("key_id", flat=True)
    assert key_ids[0] != key_ids[1] == key_ids[2]
    assert not {"test-secret", "second-secret"} & set(key_ids)


def test_10_a_retired_secret_is_refused(settings: Settings, buyer: User, monthly: Plan) -> None:
    settings.WEBHOOK_SECRETS = {"TILDA": ("second-secret",)}
    assert result(deliver(paid(), secret="test-secret")) == (401, "INVALID_SIGNATURE")
    assert result(deliver(paid(), secret="second-secret")) == (200, "processed")


@pytest.mark.parametrize(("wrong_ones", "code"), [(1, 200), (7, 200), (8, 401), (5000, 401)])
def test_10_several_signatures_in_one_header_are_tried_up_to_a_number(
    buyer: User, monthly: Plan, wrong_ones: int, code: int
) -> None:
    body = to_bytes(paid())
    right = sign(body)["X-Webhook-Signature"]
    header = ", ".join(["0" * 64] * wrong_ones + [right.upper()])

    assert send(body, {"X-Webhook-Signature": header}).status_code == code


# --- 12: a comparison that stops at the first difference tells how far a guess was right ---

_SECRET_WORDS = ("signature", "digest", "secret", "key", "token", "hmac", "mac")


def _leaky_comparisons(source: str) -> list[str]:
    """`==`, `!=`, `in` and `not in` with anything that is named like a secret."""
    kinds = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Compare)
        and any(isinstance(operator, kinds) for operator in node.ops)
        and any(_names_a_secret(side) for side in (node.left, *node.comparators))
    ]


def _names_a_secret(side: ast.AST) -> bool:
    names: list[str] = []
    for node in ast.walk(side):
        if isinstance(node, ast.Name):
            names.append(node.id)
        elif isinstance(node, ast.Attribute):
            names.append(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.append(node.value)
    return any(word in _words(name) for name in names for word in _SECRET_WORDS)


def _words(name: str) -> set[str]:
    parts = name.lower().replace("-", "_").replace(" ", "_").split("_")
    return {form for part in parts for form in (part, part.removesuffix("s"))}


_PROVIDER_FILES = sorted(Path(providers.__path__[0]).rglob("*.py"))


@pytest.mark.parametrize("path", _PROVIDER_FILES, ids=lambda path: path.name)
def test_12_providers_compare_secrets_in_constant_time(path: Path) -> None:
    assert _leaky_comparisons(path.read_text()) == []


def test_12_all_providers_are_looked_at() -> None:
    assert {"signing.py", "tilda.py", "base.py"} <= {path.name for path in _PROVIDER_FILES}


@pytest.mark.parametrize(
    "leaky",
    [
        "ok = signature == expected",
        "ok = expected != headers['x-webhook-signature']",
        "if delivery.headers.get('X-Api-Key') in self.secrets: pass",
        "while hmac.new(k, m, h).hexdigest() == theirs: pass",
        "found = [s for s in self.secrets if presented == s.secret]",
        "refused = token not in known",
    ],
)
def test_12_the_check_catches_a_leaky_comparison(leaky: str) -> None:
    assert _leaky_comparisons(leaky)


@pytest.mark.parametrize("fine", ["status == 'paid'", "'monkey' in zoo", "secret is None"])
def test_12_the_check_leaves_other_comparisons_alone(fine: str) -> None:
    assert _leaky_comparisons(fine) == []


def test_12_it_compares_every_secret_by_compare_digest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proof that the constant-time function is what decides."""
    asked: list[Any] = []

    def yes(left: bytes, right: bytes) -> bool:
        asked.append((left, right))
        return True

    monkeypatch.setattr("webhooks.providers.signing.hmac.compare_digest", yes)
    body = to_bytes({"event_type": "nothing"})

    assert send(body, {"X-Webhook-Signature": "0" * 64}).status_code == 200
    assert send(body, {"X-Api-Key": "wrong"}).status_code == 200
    assert len(asked) == 2
