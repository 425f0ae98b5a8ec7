"""The canonical provider: recorded samples in, facts out. No database."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from billing.codes import ErrorCode
from billing.facts import FactKind, NotAPayment, PaymentFact
from tests.sending import sign, sign_with_time
from webhooks.providers import all_providers, find_provider, provider_of
from webhooks.providers.base import Delivery, Malformed, Proof, Rejected, Result
from webhooks.providers.signing import hmac_sha256_hex
from webhooks.providers.tilda import KIND_BY_STATUS, Tilda

TILDA = Tilda(("test-secret", "second-secret"))
FULL = {
    "event_id": "e-1",
    "event_type": "payment.paid",
    "external_payment_id": "p-1",
    "merchant_uid": "m-1",
    "status": "paid",
    "email": "buyer@example.com",
    "amount": "990.50",
    "currency": "rub",
    "plan_id": "monthly",
    "paid_at": "2024-01-31T12:00:00+03:00",
    "occurred_at": "2024-01-31T09:00:01Z",
    "refund_id": "r-1",
    "amount_refunded": "10",
    "test": False,
}


def _parse(payload: dict[str, Any]) -> PaymentFact | NotAPayment:
    return TILDA.parse(Delivery(json.dumps(payload).encode()))


def _fact(**fields: Any) -> PaymentFact:
    fact = _parse({"external_payment_id": "p", "status": "paid", **fields})
    assert isinstance(fact, PaymentFact)
    return fact


def test_it_reads_every_field_there_is() -> None:
    assert _parse(FULL) == PaymentFact(
        external_payment_id="p-1",
        kind=FactKind.PAID,
        incoming_status="paid",
        event_id="e-1",
        event_type="payment.paid",
        merchant_uid="m-1",
        email="buyer@example.com",
        amount=Decimal("990.50"),
        currency="RUB",
        plan_code="monthly",
        paid_at=datetime(2024, 1, 31, 9, tzinfo=UTC),
        occurred_at=datetime(2024, 1, 31, 9, 0, 1, tzinfo=UTC),
        refund_id="r-1",
        amount_refunded=Decimal(10),
        live=True,
    )


def test_it_needs_only_the_payment_and_its_status() -> None:
    assert _fact() == PaymentFact(
        external_payment_id="p", kind=FactKind.PAID, incoming_status="paid"
    )


@pytest.mark.parametrize("name", sorted(set(FULL) - {"external_payment_id", "status"}))
def test_null_is_not_there(name: str) -> None:
    assert _fact(**{name: None}) == _fact()


@pytest.mark.parametrize(
    ("word", "kind"),
    [
        ("paid", FactKind.PAID),
        ("succeeded", FactKind.PAID),
        ("pending", FactKind.PENDING),
        ("processing", FactKind.PENDING),
        ("failed", FactKind.FAILED),
        ("canceled", FactKind.CANCELED),
        ("cancelled", FactKind.CANCELED),
        ("refunded", FactKind.REFUNDED),
        ("partially_refunded", FactKind.PARTIALLY_REFUNDED),
        ("refund_failed", FactKind.REFUND_FAILED),
        ("disputed", FactKind.DISPUTED),
        ("dispute_won", FactKind.DISPUTE_WON),
        ("dispute_lost", FactKind.DISPUTE_LOST),
    ],
)
def test_it_knows_their_words(word: str, kind: FactKind) -> None:
    fact = _fact(status=word)
    assert (fact.kind, fact.incoming_status) == (kind, word)
    assert len(KIND_BY_STATUS) == 13


@pytest.mark.parametrize("word", ["authorized", "paid!", "успешно"])
def test_a_word_it_does_not_know_is_no_payment(word: str) -> None:
    said = _parse({"external_payment_id": "p", "status": word, "event_id": "e"})
    assert said == NotAPayment(event_id="e", external_payment_id="p", incoming_status=word)


def test_the_time_of_payment_is_when_a_success_occurred() -> None:
    fact = _fact(paid_at="2024-01-31T09:00:00Z")
    assert fact.occurred_at == fact.paid_at == datetime(2024, 1, 31, 9, tzinfo=UTC)
    refund = _fact(status="refunded", paid_at="2024-01-31T09:00:00Z")
    assert refund.occurred_at is None, "when it was paid does not say when it was refunded"


def test_a_time_without_a_zone_is_utc() -> None:
    assert _fact(paid_at="2024-01-31T09:00:00").paid_at == datetime(2024, 1, 31, 9, tzinfo=UTC)


@pytest.mark.parametrize(
    ("given", "read"),
    [
        (" Buyer@Example.com ", "Buyer@Example.com"),
        ("no address", None),
        ("", None),
        (["a@b.example"], None),
        ("x" * 243 + "@example.com", None),
        ("x" * 242 + "@example.com", "x" * 242 + "@example.com"),
        ("a\0@example.com", None),
    ],
)
def test_what_is_no_address_is_none_and_never_an_error(given: Any, read: str | None) -> None:
    assert _fact(email=given).email == read


@pytest.mark.parametrize(
    "fields",
    [
        {"amount": "1", "currency": "RUBLE"},
        {"amount": "1", "currency": 643},
        {"amount": "1", "currency": "\u0440\u0443\u0431"},
        {"amount_refunded": "-1", "currency": "RUB"},
        {"amount_refunded": "0.001", "currency": "RUB"},
        {"test": 1},
        {"test": "false"},
        {"event_type": 1.5},
        {"paid_at": {}},
    ],
)
def test_a_field_that_makes_no_sense_is_malformed(fields: dict[str, Any]) -> None:
    with pytest.raises(Malformed):
        _fact(**fields)


def test_what_is_malformed_is_told_by_its_rule_and_never_quoted() -> None:
    with pytest.raises(Malformed) as refusal:
        _fact(amount="4111111111111111", currency="RUB")
    assert "4111" not in str(refusal.value)


# --- verify ---

BODY = b'{"external_payment_id": "p", "status": "paid"}'


def _keys(*secrets: str) -> list[dict[str, str]]:
    return [{"X-Api-Key": secret, "Content-Length": str(len(BODY))} for secret in secrets]


def _verify(headers: dict[str, str]) -> Proof:
    return TILDA.verify(Delivery(BODY, {name.lower(): value for name, value in headers.items()}))


@pytest.mark.parametrize("secret", ["test-secret", "second-secret"])
def test_it_believes_a_signature_or_the_secret_itself(secret: str) -> None:
    signed = _verify(sign(BODY, secret))
    keyed = _verify({"X-Api-Key": secret, "Content-Length": str(len(BODY))})
    assert (signed.method, keyed.method) == ("hmac-sha256", "api-key")
    assert signed.key_id == keyed.key_id
    assert secret not in signed.key_id


def test_the_signature_is_the_one_that_was_specified() -> None:
    """hex(HMAC-SHA256(secret, raw body)), as `openssl dgst -sha256 -hmac secret` computes it."""
    known = "dc46983557fea127b43af721467eb9b3fde2338fe3e14f51952aa8478c13d355"
    delivery = Delivery(b"body", {"x-webhook-signature": known})
    assert Tilda(("secret",)).verify(delivery).method == "hmac-sha256"


@pytest.mark.parametrize(
    "headers",
    [{}, *_keys("", "Test-Secret", "test-secret "), sign(BODY, "other"), sign(BODY + b"\n")],
)
def test_it_rejects_what_proves_nothing(headers: dict[str, str]) -> None:
    with pytest.raises(Rejected) as rejected:
        _verify(headers)
    assert rejected.value.code == ErrorCode.INVALID_SIGNATURE


def test_a_key_without_a_length_proves_nothing() -> None:
    """It does not cover the body, so one that was cut off on its way would pass as whole."""
    headers = {"x-api-key": "test-secret"}
    with pytest.raises(Rejected) as rejected:
        provider_of("tilda").verify(Delivery(b"{}", headers, length_announced=False))
    assert rejected.value.code == ErrorCode.INVALID_SIGNATURE


def test_a_signed_time_cannot_be_stripped_or_swapped() -> None:
    now = int(time.time())
    headers = sign_with_time(BODY, now)
    assert _verify(headers).method == "hmac-sha256"
    for changed in (
        {"X-Webhook-Signature": headers["X-Webhook-Signature"]},
        {**headers, "X-Webhook-Timestamp": str(now + 1)},
        {**sign(BODY), "X-Webhook-Timestamp": str(now)},
    ):
        with pytest.raises(Rejected):
            _verify(changed)


def test_a_wrong_signature_is_told_before_an_old_time() -> None:
    """Only who knows the secret learns anything about our clock."""
    with pytest.raises(Rejected) as rejected:
        _verify(sign_with_time(BODY, 1, "other"))
    assert rejected.value.code == ErrorCode.INVALID_SIGNATURE


def test_no_header_that_is_a_secret_is_kept() -> None:
    assert "x-api-key" not in Tilda.headers_kept


# --- fingerprint, acknowledge, discovery ---


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({"amount": "990.5"}, True),
        ({"amount": 990.5}, True),
        ({"currency": "RUB"}, True),
        ({"email": "other@example.com"}, True),
        ({"paid_at": "2024-02-01T00:00:00Z"}, True),
        ({"status": "succeeded"}, True),
        ({"event_type": "other"}, True),
        ({"amount": "990.51"}, False),
        ({"amount": None}, False),
        ({"currency": "USD"}, False),
        ({"status": "failed"}, False),
        ({"external_payment_id": "p-2"}, False),
        ({"merchant_uid": "m-2"}, False),
        ({"refund_id": "r-2"}, False),
        ({"amount_refunded": "11"}, False),
        ({"plan_id": "yearly"}, False),
        ({"test": True}, False),
    ],
)
def test_the_fingerprint_is_of_the_money(other: dict[str, Any], same: bool) -> None:
    prints = []
    for payload in (FULL, {**FULL, **other}):
        fact = _parse(payload)
        assert isinstance(fact, PaymentFact)
        prints.append(TILDA.fingerprint(fact))
    assert (prints[0] == prints[1]) is same
    assert len(prints[0]) <= 80


@pytest.mark.parametrize("result", list(Result))
def test_only_a_conflict_is_answered_otherwise_than_200(result: Result) -> None:
    answer = TILDA.acknowledge(result, "event", "request")
    assert answer.http_status == (409 if result is Result.CONFLICT else 200)
    assert answer.body == {"status": result, "event_id": "event", "request_id": "request"}


def test_it_is_found_by_its_name_and_by_the_canonical_url() -> None:
    assert isinstance(find_provider("tilda"), Tilda)
    assert isinstance(find_provider("payments"), Tilda)
    assert find_provider("TILDA") is None
    assert "tilda" in all_providers()
    with pytest.raises(LookupError):
        provider_of("gone")


def test_a_signed_time_cannot_be_moved_into_the_body() -> None:
    """Otherwise a delivery caught long ago would verify again, as another body."""
    signed = b"1700000000." + BODY
    headers = {"x-webhook-signature": hmac_sha256_hex("test-secret", signed)}
    with pytest.raises(Rejected) as rejected:
        TILDA.verify(Delivery(signed, headers))
    assert rejected.value.code == ErrorCode.INVALID_SIGNATURE
