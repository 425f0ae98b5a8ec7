"""Signed deliveries, as a provider would make them."""

from __future__ import annotations

import json
from itertools import count
from typing import Any

from django.test import Client

from webhooks.providers.signing import hmac_sha256_hex

SECRET = "test-secret"  # as in tests/plugin_servers.py
URL = "/webhooks/payments"
_numbers = count(1)


def paid(**fields: Any) -> dict[str, Any]:
    """A canonical paid webhook; a field given as None is left out."""
    number = next(_numbers)
    payload = {
        "event_id": f"evt-{number}",
        "external_payment_id": f"pay-{number}",
        "status": "paid",
        "email": "buyer@example.com",
        "amount": "990.00",
        "currency": "RUB",
        **fields,
    }
    return {name: value for name, value in payload.items() if value is not None}


def sign(body: bytes, secret: str = SECRET) -> dict[str, str]:
    return {"X-Webhook-Signature": hmac_sha256_hex(secret, body)}


def sign_with_time(body: bytes, timestamp: str | int, secret: str = SECRET) -> dict[str, str]:
    """The time is under the signature too."""
    return {
        "X-Webhook-Timestamp": str(timestamp),
        **sign(f"{timestamp}.".encode() + body, secret),
    }


def to_bytes(payload: dict[str, Any] | bytes) -> bytes:
    return payload if isinstance(payload, bytes) else json.dumps(payload).encode()


def deliver(payload: dict[str, Any] | bytes, *, secret: str = SECRET, url: str = URL) -> Any:
    """Sign and send through Django's test client."""
    body = to_bytes(payload)
    return send(body, sign(body, secret), url=url)


def send(
    body: bytes,
    headers: dict[str, str] | None = None,
    *,
    url: str = URL,
    method: str = "POST",
    content_type: str = "application/json",
    stream: Any = None,
    **environ: str,
) -> Any:
    """`environ` goes into the WSGI environment as it is: REMOTE_ADDR, CONTENT_LENGTH, …; a
    `stream` is what the server would read the body from."""
    client = Client(raise_request_exception=False)
    # Django's client announces no length for an empty body; servers do.
    extra: dict[str, Any] = {"CONTENT_LENGTH": str(len(body)), **environ}
    if stream is not None:
        extra["wsgi.input"] = stream
    return client.generic(
        method, url, body, content_type=content_type, headers=headers or {}, **extra
    )


def result(answer: Any) -> tuple[int, str]:
    """The HTTP status, and the word of the answer or of its error."""
    told = answer.json()
    return answer.status_code, told["error"]["code"] if "error" in told else told["status"]
