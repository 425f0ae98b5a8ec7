"""A POST with an Idempotency-Key acts once: asked again, it gets the first answer again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from django.db import OperationalError, connection, transaction
from django.http import HttpRequest
from psycopg.errors import LockNotAvailable

from webhooks.api.refusals import as_refusal
from webhooks.errors import Refused, error_response
from webhooks.models import IdempotentAnswer
from webhooks.transactions import short_transaction

KEEP_DAYS = 7
MAX_KEY_CHARS = 255
# With other rights or later these may well turn out otherwise.
_NOT_FINAL = frozenset({401, 403, 429})
_CLEAN_BATCH = 5000


@dataclass(frozen=True)
class Answer:
    http_status: int
    body: Any
    replayed: bool = False


@dataclass(frozen=True, kw_only=True)
class Asked:
    """`key` is the client's own: two clients may use the same one for different things."""

    client: str
    key: str | None
    request_hash: str


def asked(request: HttpRequest, *, client: str, body: bytes) -> Asked:
    key = request.headers.get("Idempotency-Key")
    if key is not None and not (0 < len(key) <= MAX_KEY_CHARS and key.isascii()):
        raise Refused(400, "INVALID_REQUEST", "Idempotency-Key must have 1 to 255 ASCII characters")
    # The path with and without its last slash is the same request.
    target = f"{request.method} {request.path.rstrip('/')}\n".encode()
    return Asked(client=client, key=key, request_hash=sha256(target + body).hexdigest())


def answer_once(request: Asked, act: Callable[[], Answer]) -> Answer:
    """The act and the memory of its answer are one transaction. Of two at once the second waits
    for the first one's commit and gets its answer, or, should that take long, a 409."""
    with short_transaction():
        if request.key is None:
            return act()
        if not _claim(request):
            return _replay(request)
        answer = _final(act)
        IdempotentAnswer.objects.filter(client=request.client, key=request.key).update(
            http_status=answer.http_status, body=answer.body
        )
        return answer


def clean_answers(older_than_days: int = KEEP_DAYS) -> int:
    cleaned = 0
    while True:
        with connection.cursor() as cursor:
            cursor.execute(
                """
                DELETE FROM webhooks_idempotentanswer WHERE id IN (
                    SELECT id FROM webhooks_idempotentanswer
                    WHERE created_at < now() - make_interval(days => %s)
                    ORDER BY created_at LIMIT %s
                )
                """,
                [older_than_days, _CLEAN_BATCH],
            )
            number = int(cursor.rowcount)
        cleaned += number
        if number < _CLEAN_BATCH:
            return cleaned


def _claim(request: Asked) -> bool:
    try:
        with connection.cursor() as cursor:
            cursor.execute(
                """
                INSERT INTO webhooks_idempotentanswer (client, key, request_hash)
                VALUES (%s, %s, %s) ON CONFLICT (client, key) DO NOTHING
                """,
                [request.client, request.key, request.request_hash],
            )
            return bool(cursor.rowcount == 1)
    except OperationalError as error:
        if isinstance(error.__cause__, LockNotAvailable):
            message = "a request with this Idempotency-Key is at work: try again"
            raise Refused(409, "IDEMPOTENCY_KEY_IN_USE", message) from error
        raise


def _replay(request: Asked) -> Answer:
    known = IdempotentAnswer.objects.filter(client=request.client, key=request.key).first()
    if known is None or known.http_status is None:
        # Cleaned away in this very moment.
        raise Refused(409, "IDEMPOTENCY_KEY_IN_USE", "this Idempotency-Key is in use: try again")
    if known.request_hash != request.request_hash:
        message = "this Idempotency-Key was used for another request"
        raise Refused(422, "IDEMPOTENCY_KEY_REUSED", message)
    return Answer(known.http_status, known.body, replayed=True)


def _final(act: Callable[[], Answer]) -> Answer:
    """A refusal is an answer too. What it had changed goes with its savepoint; the memory of it
    stays. A fault, ours or the database's, takes everything along, and the next try is a first."""
    try:
        with transaction.atomic():
            return act()
    except Exception as error:
        refused = as_refusal(error)
        if refused is None or refused.status_code >= 500 or refused.status_code in _NOT_FINAL:
            raise
        if (response := error_response(refused, {})) is None:
            raise
        return Answer(response.status_code, response.data)
