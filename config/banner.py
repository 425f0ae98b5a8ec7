from __future__ import annotations

import os
import shlex
from pathlib import Path

import httpx

_BODY = (
    '{"event_id":"by-hand-1","external_payment_id":"pay-by-hand-1","status":"paid",'
    '"email":"demo@example.com","amount":"990","currency":"RUB"}'
)


class Announcement:
    """Tells a newcomer what to do next, as soon as that works."""

    def __init__(self, port: int, data_dir: Path) -> None:
        self._origin = f"http://127.0.0.1:{port}"
        self._data_dir = data_dir
        self._made = False

    def make_once_ready(self) -> None:
        if not self._made and self._web_answers():
            self._made = True
            print(_text(self._origin, self._data_dir), flush=True)

    def _web_answers(self) -> bool:
        try:
            # Not through the proxy that the environment may name: this is our own machine.
            httpx.get(f"{self._origin}/webhooks/health", timeout=2, trust_env=False)
        except httpx.HTTPError:
            return False
        return True


def _text(origin: str, data_dir: Path) -> str:
    return f"""
Tollgate is running. Ctrl-C stops all of it.

  back office  {origin}/admin/   (the login is printed above, before the servers' lines)
  health       {origin}/webhooks/health
  metrics      {origin}/metrics

Send a first webhook, from another terminal in this folder:

  .venv/bin/python manage.py send_webhook --event-id first

It extends the demo user's subscription; run it again, and it is a duplicate. By hand:

  SECRET={_secret(data_dir)}
  BODY={shlex.quote(_BODY)}
  SIGNATURE=$(printf %s "$BODY" | openssl dgst -sha256 -hmac "$SECRET" -r | cut -d ' ' -f 1)
  curl -sS {origin}/webhooks/payments -H 'Content-Type: application/json' \\
    -H "X-Webhook-Signature: $SIGNATURE" -d "$BODY"
"""


def _secret(data_dir: Path) -> str:
    """A shell expression, so that the secret itself stays out of terminals and their logs."""
    if os.environ.get("WEBHOOK_SECRETS_TILDA"):
        return '"${WEBHOOK_SECRETS_TILDA%%,*}"'
    file = shlex.quote(os.path.relpath(data_dir / "local.env"))
    return f'"$(sed -n s/^WEBHOOK_SECRETS_TILDA=//p {file})"'
