import json
import time
from typing import Any
from uuid import uuid4

import httpx
from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from webhooks.providers.signing import hmac_sha256_hex


class Command(BaseCommand):
    help = "Sign a sample webhook, send it to a running copy and print the answer."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--email", default="demo@example.com", help="'' sends none")
        parser.add_argument("--amount", default="990", help="'' sends none")
        parser.add_argument("--currency", default="RUB")
        parser.add_argument("--status", default="paid")
        parser.add_argument("--plan", default="", help="a plan's code; default: the default plan")
        parser.add_argument("--order", default="", help="the merchant_uid of the order it pays")
        parser.add_argument("--refund-id", default="", help="the provider's id of a refund")
        parser.add_argument("--refunded", default="", help="all that was refunded so far")
        parser.add_argument("--payment-id", default="", help="default: follows the event id")
        parser.add_argument("--event-id", default="", help="default: a new one")
        parser.add_argument("--repeat", type=int, default=1, help="send the same bytes N times")
        parser.add_argument("--tamper", action="store_true", help="change the body after signing")
        parser.add_argument("--unsigned", action="store_true", help="send no signature")
        parser.add_argument(
            "--timestamp", action="store_true", help="sign the time of sending as well"
        )
        parser.add_argument("--url", default=f"http://127.0.0.1:{settings.PORT}/webhooks/payments")

    def handle(self, *args: Any, **options: Any) -> None:
        body = self._body(options)
        headers = {"Content-Type": "application/json", **self._signature(body, options)}
        if options["tamper"]:
            body = body.replace(b'"status"', b'"status" ', 1)
        refused = False
        for _ in range(options["repeat"]):
            answer = self._send(options["url"], body, headers)
            refused |= answer.status_code >= 500
            self.stdout.write(f"{answer.status_code} {answer.text}")
        if refused:
            raise CommandError("the server could not take the webhook")

    def _body(self, options: dict[str, Any]) -> bytes:
        event_id = options["event_id"] or f"evt-{uuid4().hex[:16]}"
        payload = {
            "event_id": event_id,
            "external_payment_id": options["payment_id"] or f"pay-of-{event_id}",
            "status": options["status"],
            "email": options["email"],
            "amount": options["amount"],
            "currency": options["currency"] if options["amount"] else "",
            "plan_id": options["plan"],
            "merchant_uid": options["order"],
            "refund_id": options["refund_id"],
            "amount_refunded": options["refunded"],
            "occurred_at": timezone.now().isoformat(timespec="milliseconds"),
        }
        payload = {name: value for name, value in payload.items() if value}
        self.stdout.write(json.dumps(payload, ensure_ascii=False))
        return json.dumps(payload).encode()

    def _signature(self, body: bytes, options: dict[str, Any]) -> dict[str, str]:
        if options["unsigned"]:
            return {}
        secrets = settings.WEBHOOK_SECRETS.get("TILDA")
        if not secrets:
            raise CommandError("WEBHOOK_SECRETS_TILDA is not set: there is nothing to sign with")
        if not options["timestamp"]:
            return {"X-Webhook-Signature": hmac_sha256_hex(secrets[0], body)}
        now = str(int(time.time()))
        return {
            "X-Webhook-Timestamp": now,
            "X-Webhook-Signature": hmac_sha256_hex(secrets[0], f"{now}.".encode() + body),
        }

    def _send(self, url: str, body: bytes, headers: dict[str, str]) -> httpx.Response:
        try:
            # Not through a proxy that the environment may name.
            return httpx.post(url, content=body, headers=headers, timeout=10, trust_env=False)
        except httpx.HTTPError as error:
            raise CommandError(
                f"nobody answers at {url} ({type(error).__name__}): is `make run` running?"
            ) from error
