"""Messages to tell, and those who are told: for the outbox's tests."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from threading import Lock, Thread
from typing import Any
from uuid import UUID, uuid4

from django.db import connection, transaction
from django.db.models.functions import Now

from billing.models import OutboxDelivery, OutboxTarget
from billing.outbox.envelopes import Envelope
from billing.outbox.messages import Message, MessageType, write
from billing.outbox.targets import Kind, Target

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
_causes = count()


def tell(key: UUID, number: int = 1) -> None:
    """So many new messages about it. None says anything of a payment, so the read model only
    marks them as taken."""
    with transaction.atomic():
        write(
            *(
                Message(MessageType.PAYMENT_LINKED, key, f"test-{next(_causes)}", {"n": place})
                for place in range(number)
            )
        )


def tell_all(number_of_keys: int, messages_each: int = 1) -> list[UUID]:
    keys = [uuid4() for _ in range(number_of_keys)]
    for _ in range(messages_each):
        for key in keys:
            tell(key)
    return keys


def target(name: str = "crm", **fields: Any) -> Target:
    return Target(name=name, **{"kind": Kind.HTTP, "secret": SECRET, **fields})


def statuses(name: str = "crm", **filters: Any) -> list[str]:
    rows = OutboxDelivery.objects.filter(target=name, **filters).order_by("key", "seq")
    return list(rows.values_list("status", flat=True))


def make_due() -> None:
    """Let the time pass after which things are tried again, and a dead dispatcher's hold ends."""
    past = Now() - timedelta(seconds=1)
    OutboxDelivery.objects.filter(status="PENDING").update(next_attempt_at=past)
    OutboxTarget.objects.filter(open_until__isnull=False).update(open_until=past)
    OutboxTarget.objects.filter(holder__isnull=False).update(held_until=past)


def seconds_until(moment: datetime | None) -> float:
    with connection.cursor() as cursor:
        cursor.execute("SELECT extract(epoch FROM %s - clock_timestamp())", [moment])
        return float(cursor.fetchone()[0])


def envelope(**fields: Any) -> Envelope:
    return Envelope(
        **{
            "id": uuid4(),
            "type": "PaymentSucceeded",
            "key": uuid4(),
            "seq": 1,
            "idempotency_key": f"PaymentSucceeded:{uuid4()}:x",
            "timestamp": datetime.now(UTC),
            "data": {"amount": "990"},
            **fields,
        }
    )


def in_order(seen: list[tuple[UUID, int]]) -> bool:
    """Whether each key's messages came in order: repeats are fine, but nothing came for the first
    time before what is told before it."""
    newest: dict[UUID, int] = {}
    for key, seq in seen:
        if seq > newest.get(key, 0) + 1:
            return False
        newest[key] = max(newest.get(key, 0), seq)
    return True


@dataclass
class Memory:
    """A sink that remembers what it was sent, and fails as it is told to."""

    fail: Callable[[Envelope], Exception | None] = lambda _: None
    got: list[Envelope] = field(default_factory=list)
    tried: list[Envelope] = field(default_factory=list)

    def send(self, message: Envelope) -> None:
        self.tried.append(message)
        if (error := self.fail(message)) is not None:
            raise error
        self.got.append(message)

    def close(self) -> None: ...

    @property
    def seen(self) -> list[tuple[UUID, int]]:
        return [(message.key, message.seq or 0) for message in self.got]


@dataclass
class Request:
    headers: dict[str, str]
    body: bytes

    @property
    def said(self) -> dict[str, Any]:
        parsed: dict[str, Any] = json.loads(self.body)
        return parsed


class Receiver:
    """A third party's API on loopback. `answer` gives the status and headers of the next answer."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[Request] = []
        self.answer: Callable[[Request], tuple[int, dict[str, str]]] = lambda _: (204, {})
        self._lock = Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                length = int(self.headers["Content-Length"])
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = Request(headers, self.rfile.read(length))
                with outer._lock:
                    outer.requests.append(request)
                    status, answer_headers = outer.answer(request)
                self.send_response(status)
                for name, value in {"Content-Length": "0", **answer_headers}.items():
                    self.send_header(name, value)
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                """Silent."""

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}/hook"

    @property
    def seen(self) -> list[tuple[UUID, int]]:
        return [(UUID(each.said["key"]), each.said["seq"]) for each in list(self.requests)]


@contextmanager
def receiver(port: int = 0) -> Iterator[Receiver]:
    server = Receiver(port)
    Thread(target=server._server.serve_forever, args=[0.05], daemon=True).start()
    try:
        yield server
    finally:
        server._server.shutdown()
        server._server.server_close()
