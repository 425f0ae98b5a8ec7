"""Clients that do not speak HTTP as they should, against the real web server."""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from billing.models import Payment
from subscriptions.models import Plan, User
from tests.faults.servers import Web, web_server
from tests.faults.truths import assert_applied_once
from tests.sending import SECRET, URL, paid, sign, to_bytes
from webhooks.models import WebhookEvent

pytestmark = pytest.mark.django_db(transaction=True)

MIB = 1024 * 1024
LIMIT = MIB  # the default
# Far below the 100 MiB that are sent, far above what a request needs.
MAY_GROW_BY_KIB = 24 * 1024


@pytest.fixture(scope="module")
def web(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """One thread: a client that could block it would be seen at once."""
    folder: Path = tmp_path_factory.mktemp("web")
    with web_server(folder, WEB_THREADS="1") as server:
        yield server


def _connect(web: Web) -> socket.socket:
    return socket.create_connection(("127.0.0.1", web.port), timeout=20)


def _head(body: bytes, **headers: str) -> bytes:
    lines = {
        "Host": "localhost",
        "Content-Type": "application/json",
        "Connection": "close",
        **sign(body),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    text = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"POST {URL} HTTP/1.1\r\n{text}\r\n".encode()


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def _status(answer: bytes) -> int | None:
    found = re.match(rb"HTTP/1\.[01] (\d{3}) ", answer)
    return int(found[1]) if found else None


def _exchange(web: Web, parts: Iterable[bytes], *, half_close: bool = False) -> int | None:
    """Send all that is taken; the status of the answer, if there is one."""
    answer = b""
    with _connect(web) as client:
        with suppress(ConnectionError):  # it has answered, and hears no more
            for part in parts:
                client.sendall(part)
            if half_close:
                client.shutdown(socket.SHUT_WR)
        with suppress(ConnectionError):
            while data := client.recv(65536):
                answer += data
    return _status(answer)


def _assert_nothing_happened_and_it_still_serves(web: Web) -> None:
    assert not WebhookEvent.objects.filter(signature_valid=True).exists()
    assert not Payment.objects.exists()
    payload = paid()
    assert web.send(payload).json()["status"] == "processed"
    assert_applied_once(payload)


def test_nothing_happens_when_a_client_aborts_in_the_middle_of_its_body(
    web: Web, buyer: User, monthly: Plan
) -> None:
    body = to_bytes(paid())
    with _connect(web) as client:
        client.sendall(_head(body, Content_Length=str(len(body))) + body[:-5])
        # Closing sends a reset.
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    _assert_nothing_happened_and_it_still_serves(web)


def test_nothing_happens_when_the_body_is_shorter_than_announced(
    web: Web, buyer: User, monthly: Plan
) -> None:
    body = to_bytes(paid())
    head = _head(body, Content_Length=str(len(body) + 10))

    # What came is signed correctly, but it is not what was announced.
    assert _exchange(web, [head, body], half_close=True) in {400, None}

    _assert_nothing_happened_and_it_still_serves(web)


def test_nothing_happens_when_the_body_is_longer_than_announced(
    web: Web, buyer: User, monthly: Plan
) -> None:
    body = to_bytes(paid())
    head = _head(body, Content_Length=str(len(body) - 10))

    assert _exchange(web, [head, body]) in {400, 401}

    _assert_nothing_happened_and_it_still_serves(web)


@pytest.mark.parametrize("length", ["-1", "12, 13", "1e3", "99999999999999999999999999"])
def test_nothing_happens_when_the_length_is_no_length(
    length: str, web: Web, buyer: User, monthly: Plan
) -> None:
    body = to_bytes(paid())

    assert _exchange(web, [_head(body, Content_Length=length), body]) in {400, 413, 431}

    _assert_nothing_happened_and_it_still_serves(web)


def test_it_takes_a_body_in_chunks(web: Web, buyer: User, monthly: Plan) -> None:
    payload = paid()
    body = to_bytes(payload)
    chunks = [_chunk(body[:7]), _chunk(body[7:]), _chunk(b"")]

    assert _exchange(web, [_head(body, Transfer_Encoding="chunked"), *chunks]) == 200

    assert_applied_once(payload)


@pytest.mark.parametrize("proof", ["signature", "API key"])
def test_nothing_happens_when_a_client_aborts_between_two_chunks(
    proof: str, web: Web, buyer: User, monthly: Plan
) -> None:
    body = to_bytes(paid())
    head = _head(body, Transfer_Encoding="chunked")
    if proof == "API key":
        head = head.replace(b"X-Webhook-Signature: ", f"X-Api-Key: {SECRET}\r\nX-Not: ".encode())

    assert _exchange(web, [head, _chunk(body[:-5])], half_close=True) in {400, 401, None}

    _assert_nothing_happened_and_it_still_serves(web)


def test_a_body_in_chunks_that_is_over_the_limit_is_refused(
    web: Web, buyer: User, monthly: Plan
) -> None:
    body = b"[" + b" " * LIMIT
    parts = [_head(body, Transfer_Encoding="chunked"), _chunk(body), _chunk(b"")]

    assert _exchange(web, parts) == 413

    _assert_nothing_happened_and_it_still_serves(web)


@pytest.mark.parametrize("chunked", [True, False], ids=["chunked", "announced"])
def test_a_huge_body_is_not_kept_in_memory(
    chunked: bool, web: Web, buyer: User, monthly: Plan
) -> None:
    (worker,) = web.workers()
    web.send(paid())
    before = _peak_kib(worker)
    piece = _chunk(b" " * MIB) if chunked else b" " * MIB
    length = {"Transfer_Encoding": "chunked"} if chunked else {"Content_Length": str(100 * MIB)}

    status = _exchange(web, [_head(b"", **length), *[piece] * 100])

    # It may hang up on us before we have read its answer.
    assert status in {413, None}
    assert _peak_kib(worker) - before < MAY_GROW_BY_KIB
    assert web.send(paid()).json()["status"] == "processed"


def _peak_kib(pid: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found
    return int(found[1])
