"""A third party's API, by https://www.standardwebhooks.com (checked 2026-11): POST of JSON with
`webhook-id`, `webhook-timestamp` and `webhook-signature`."""

from __future__ import annotations

import base64
import json
from contextlib import suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from string import punctuation
from time import monotonic
from urllib.parse import quote

import httpx
from standardwebhooks.webhooks import Webhook

from billing.outbox.envelopes import Envelope
from billing.outbox.sinks import Refused, Unreachable
from billing.outbox.targets import Target

_PREFIX = "whsec_"
# Answers that say "later", although their numbers say "you".
_LATER = {408, 409, 425, 429}
_MAX_ANSWER_BYTES = 64 * 1024


class HttpSink:
    def __init__(self, target: Target) -> None:
        self._url = target.url
        self._timeout_s = target.timeout_s
        self._signer = signer(target.secret)
        self._client = httpx.Client(
            timeout=target.timeout_s,
            # A redirect would send the message to an address that no setting names.
            follow_redirects=False,
            # Neither a proxy nor a .netrc that the environment may name.
            trust_env=False,
        )

    def send(self, message: Envelope) -> None:
        body = json.dumps(message.to_json(), separators=(",", ":"))
        now = datetime.now(UTC)
        headers = {
            "Content-Type": "application/json",
            "User-Agent": "Tollgate",
            "Idempotency-Key": quote(message.idempotency_key, safe=punctuation),
            "webhook-id": str(message.id),
            "webhook-timestamp": str(int(now.timestamp())),
            "webhook-signature": self._signer.sign(str(message.id), now, body),
        }
        _judge(*self._post(body, headers))

    def close(self) -> None:
        self._client.close()

    def _post(self, body: str, headers: dict[str, str]) -> tuple[int, str | None]:
        deadline = monotonic() + self._timeout_s
        try:
            with self._client.stream("POST", self._url, content=body, headers=headers) as answer:
                _drain(answer, deadline)
                return answer.status_code, answer.headers.get("retry-after")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise Unreachable(type(error).__name__) from error


def _drain(answer: httpx.Response, deadline: float) -> None:
    """Read to its end, so that the connection can be used again. The status is what counts: an
    answer that drips, swells or breaks off is let go."""
    read = 0
    with suppress(httpx.HTTPError):
        for chunk in answer.iter_raw():
            read += len(chunk)
            if read > _MAX_ANSWER_BYTES or monotonic() > deadline:
                return


def signer(secret: str) -> Webhook:
    """Of `whsec_` and base64, as the standard writes secrets, or of any other text as it is."""
    if not secret.startswith(_PREFIX):
        return Webhook(secret.encode())
    encoded = secret.removeprefix(_PREFIX)
    # The package's own decoding skips what is not base64, and so signs with half a key.
    return Webhook(base64.b64decode(encoded + "=" * (-len(encoded) % 4), validate=True))


def _judge(status: int, retry_after: str | None) -> None:
    if 200 <= status < 300:
        return
    if 400 <= status < 500 and status not in _LATER:
        raise Refused(f"HTTP {status}")
    raise Unreachable(f"HTTP {status}", retry_after_s=_seconds(retry_after))


def _seconds(retry_after: str | None) -> float | None:
    """As a number or as a date (RFC 9110, 10.2.3); what is neither says nothing."""
    text = (retry_after or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())
