"""The canonical JSON at /webhooks/payments, as provider `tilda`.

Proof, any one of:
  X-Webhook-Signature: hex(HMAC-SHA256(secret, body))
  X-Webhook-Signature: hex(HMAC-SHA256(secret, timestamp + "." + body)), X-Webhook-Timestamp
  X-Api-Key: secret
"""

import re
import time
from dataclasses import replace
from decimal import Decimal
from typing import Any

from django.conf import settings

from billing.codes import ErrorCode
from billing.facts import FactKind, Name, NotAPayment, PaymentFact
from billing.money import BadMoney, parse_amount, parse_currency
from webhooks.providers import fields, signing, strict_json
from webhooks.providers.base import (
    Answer,
    Delivery,
    Malformed,
    Proof,
    Provider,
    Rejected,
    Result,
)

KIND_BY_STATUS = {
    "paid": FactKind.PAID,
    "succeeded": FactKind.PAID,
    "pending": FactKind.PENDING,
    "processing": FactKind.PENDING,
    "failed": FactKind.FAILED,
    "canceled": FactKind.CANCELED,
    "cancelled": FactKind.CANCELED,
    "refunded": FactKind.REFUNDED,
    "partially_refunded": FactKind.PARTIALLY_REFUNDED,
    "refund_failed": FactKind.REFUND_FAILED,
    "disputed": FactKind.DISPUTED,
    "dispute_won": FactKind.DISPUTE_WON,
    "dispute_lost": FactKind.DISPUTE_LOST,
}

MAX_ALIASES = 10
SYSTEM = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
_TIMESTAMPED = re.compile(rb"[0-9]{1,11}\.")


class Tilda(Provider):
    slug = "tilda"
    headers_kept = ("content-type", "x-webhook-signature", "x-webhook-timestamp")

    def verify(self, delivery: Delivery) -> Proof:
        signatures = delivery.headers.get("x-webhook-signature", "")
        if not signatures:
            return self._verify_api_key(delivery)
        timestamp = delivery.headers.get("x-webhook-timestamp")
        if timestamp is None and _TIMESTAMPED.match(delivery.body):
            # Somebody moved the signed time into the body to get around the window.
            raise Rejected(ErrorCode.INVALID_SIGNATURE, "the body starts with a time")
        # Where a time is sent it is signed too, so that neither can be stripped or swapped.
        signed = delivery.body if timestamp is None else f"{timestamp}.".encode() + delivery.body
        secret = signing.matching_secret(self.secrets, signed, signatures.split(","))
        if secret is None:
            raise Rejected(ErrorCode.INVALID_SIGNATURE, "no signature matches")
        if timestamp is not None:
            signing.check_signed_time(
                timestamp,
                now_s=time.time(),
                tolerance_s=settings.WEBHOOK_SIGNED_TIME_TOLERANCE_S,
            )
        return Proof("hmac-sha256", signing.key_id(secret))

    def _verify_api_key(self, delivery: Delivery) -> Proof:
        # A key says nothing about the body, so we must be able to tell that it is whole.
        if not delivery.length_announced:
            raise Rejected(ErrorCode.INVALID_SIGNATURE, "a key needs a Content-Length")
        secret = signing.same_secret(self.secrets, delivery.headers.get("x-api-key", ""))
        if secret is None:
            raise Rejected(ErrorCode.INVALID_SIGNATURE, "neither a signature nor a known key")
        return Proof("api-key", signing.key_id(secret))

    def parse(self, delivery: Delivery) -> PaymentFact | NotAPayment:
        payload = strict_json.parse_object(delivery.body)
        event_type = fields.optional_id(payload, "event_type")
        live = not fields.optional_flag(payload, "test")
        if event_type and "external_payment_id" not in payload and "status" not in payload:
            return NotAPayment(
                event_id=fields.optional_id(payload, "event_id"), event_type=event_type, live=live
            )
        payment_id = fields.required_id(payload, "external_payment_id")
        status = fields.required_id(payload, "status")
        kind = KIND_BY_STATUS.get(status.strip().lower())
        if kind is None:
            return NotAPayment(
                event_id=fields.optional_id(payload, "event_id"),
                event_type=event_type,
                external_payment_id=payment_id,
                merchant_uid=fields.optional_id(payload, "merchant_uid"),
                incoming_status=status,
                live=live,
            )
        try:
            fact = _fact(payload, payment_id, status, kind, event_type, live=live)
        except BadMoney as error:
            raise Malformed(str(error)) from error
        if any(name.system == self.slug for name in fact.aliases):
            raise Malformed("aliases are other systems' names; our own is external_payment_id")
        return fact

    def acknowledge(self, result: Result, event_id: str, request_id: str) -> Answer:
        answer = super().acknowledge(result, event_id, request_id)
        return replace(answer, http_status=409) if result is Result.CONFLICT else answer

    def payload(self, delivery: Delivery) -> str | None:
        return strict_json.for_jsonb(delivery.body)


def _fact(
    payload: dict[str, Any],
    payment_id: str,
    status: str,
    kind: FactKind,
    event_type: str | None,
    *,
    live: bool,
) -> PaymentFact:
    currency = parse_currency(payload["currency"]) if payload.get("currency") else None
    paid_at = fields.optional_time(payload, "paid_at")
    occurred_at = fields.optional_time(payload, "occurred_at")
    if kind is FactKind.PAID:
        occurred_at = occurred_at or paid_at
    return PaymentFact(
        external_payment_id=payment_id,
        kind=kind,
        incoming_status=status,
        event_id=fields.optional_id(payload, "event_id"),
        event_type=event_type,
        merchant_uid=fields.optional_id(payload, "merchant_uid"),
        email=fields.optional_email(payload, "email"),
        amount=_amount(payload, currency, kind),
        currency=currency,
        plan_code=fields.optional_id(payload, "plan_id"),
        paid_at=paid_at,
        occurred_at=occurred_at,
        refund_id=fields.optional_id(payload, "refund_id"),
        amount_refunded=_refunded(payload, currency),
        aliases=_aliases(payload),
        live=live,
    )


def _amount(payload: dict[str, Any], currency: str | None, kind: FactKind) -> Decimal | None:
    """Nobody pays nothing; but an attempt that failed may be told with 0 or a blank."""
    amount = payload.get("amount")
    if amount is None or (amount == "" and kind is not FactKind.PAID):
        return None
    return parse_amount(amount, currency, allow_zero=kind is not FactKind.PAID) or None


def _refunded(payload: dict[str, Any], currency: str | None) -> Decimal | None:
    if payload.get("amount_refunded") in (None, ""):
        return None
    return parse_amount(payload["amount_refunded"], currency, allow_zero=True)


def _aliases(payload: dict[str, Any]) -> tuple[Name, ...]:
    """{"yookassa": "2d0c…"}: what other systems call the same charge."""
    given = payload.get("aliases") or {}
    if not isinstance(given, dict) or len(given) > MAX_ALIASES:
        raise Malformed(f"aliases must be an object of at most {MAX_ALIASES} names")
    if not all(SYSTEM.fullmatch(system) for system in given):
        raise Malformed("the systems in aliases must be short lower-case words")
    return tuple(Name(system, fields.required_id(given, system)) for system in sorted(given))
