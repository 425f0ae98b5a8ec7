"""How they connect: threats 30 to 33."""

from __future__ import annotations

import gzip
import io
from typing import Any

import pytest
from django.http import HttpRequest
from django.http.multipartparser import MultiPartParser
from django.http.request import UnreadablePostError
from pytest_django import Settings

from subscriptions.models import Plan, User
from tests.looking import NOTHING, effects
from tests.sending import SECRET, URL, deliver, paid, result, send, sign, to_bytes
from webhooks.models import WebhookEvent

pytestmark = pytest.mark.django_db
KEY = {"X-Api-Key": SECRET}
LIMIT = 1000


class Wire(io.RawIOBase):
    """An endless body that counts what was taken from it."""

    def __init__(self, *, ends_after: int | None = None, breaks: type[Exception] | None = None):
        self.taken = 0
        self._ends_after = ends_after
        self._breaks = breaks

    def read(self, size: int = -1) -> bytes:
        assert size >= 0, "never all there is"
        assert self.taken < 1_000_000, "and not without end"
        left = size if self._ends_after is None else self._ends_after - self.taken
        if left <= 0 and self._breaks:
            raise self._breaks("connection reset by peer")
        chunk = b"x" * min(size, left)
        self.taken += len(chunk)
        return chunk


@pytest.fixture
def small_limit(settings: Settings) -> None:
    settings.WEBHOOK_MAX_BODY_BYTES = LIMIT


def _padded(length: int) -> bytes:
    body = to_bytes(paid())
    return body + b" " * (length - len(body))


def test_30_a_body_of_just_the_limit_is_read(small_limit: None, buyer: User, monthly: Plan) -> None:
    assert result(deliver(_padded(LIMIT))) == (200, "processed")


def test_30_a_byte_more_is_too_large(small_limit: None, buyer: User, monthly: Plan) -> None:
    assert result(deliver(_padded(LIMIT + 1))) == (413, "BODY_TOO_LARGE")
    assert not WebhookEvent.objects.exists()


def test_30_the_limit_is_a_mebibyte_unless_told(settings: Settings) -> None:
    assert settings.WEBHOOK_MAX_BODY_BYTES == 1024 * 1024


@pytest.mark.parametrize("announced", [str(LIMIT + 1), "9" * 30, "0" * 19 + str(10**10)])
def test_30_what_announces_too_much_is_not_read_at_all(small_limit: None, announced: str) -> None:
    wire = Wire()

    answer = send(b"", KEY, CONTENT_LENGTH=announced, stream=wire)

    assert result(answer) == (413, "BODY_TOO_LARGE")
    assert wire.taken == 0


@pytest.mark.parametrize("announced", ["", "-1", "+5"])
def test_30_a_body_without_a_length_is_read_up_to_the_limit(
    small_limit: None, announced: str
) -> None:
    """Chunked, or with a Content-Length that is none."""
    wire = Wire()

    answer = send(b"", KEY, CONTENT_LENGTH=announced, stream=wire)

    assert 400 <= answer.status_code < 500
    assert wire.taken <= LIMIT + 1
    assert effects() == NOTHING


def test_30_leading_zeros_change_no_length(small_limit: None) -> None:
    wire = Wire()

    answer = send(b"", CONTENT_LENGTH="0" * 30 + "5", stream=wire)

    assert result(answer) == (400, "MALFORMED")
    assert wire.taken == 5


def test_30_a_chunked_body_within_the_limit_is_read(
    small_limit: None, buyer: User, monthly: Plan
) -> None:
    body = to_bytes(paid())
    answer = send(b"", sign(body), CONTENT_LENGTH="", stream=io.BytesIO(body))
    assert result(answer) == (200, "processed")


@pytest.mark.parametrize("announced", ["", "-1", "+5"])
def test_30_a_key_proves_nothing_of_a_body_without_a_length(
    buyer: User, monthly: Plan, announced: str
) -> None:
    """A chunked body that was cut off would pass as whole: the key does not cover it."""
    stream = io.BytesIO(to_bytes(paid()))
    answer = send(b"", KEY, CONTENT_LENGTH=announced, stream=stream)
    assert result(answer) == (401, "INVALID_SIGNATURE")
    assert effects() == NOTHING


def test_30_what_follows_the_announced_length_is_another_request(
    buyer: User, monthly: Plan
) -> None:
    body = to_bytes(paid())
    stream = io.BytesIO(body + b'{"smuggled": true}')
    answer = send(b"", sign(body), CONTENT_LENGTH=str(len(body)), stream=stream)
    assert result(answer) == (200, "processed")


@pytest.mark.parametrize("breaks", [None, OSError, UnreadablePostError])
def test_30_a_body_shorter_than_announced_changes_nothing(
    breaks: type[Exception] | None,
) -> None:
    """The bytes that did come are never taken for the whole, however they are signed."""
    wire = Wire(ends_after=50, breaks=breaks)
    answer = send(b"", KEY, CONTENT_LENGTH="100", stream=wire)
    assert result(answer) == (400, "MALFORMED")
    assert not WebhookEvent.objects.exists()


@pytest.mark.parametrize("encoding", ["gzip", "GZIP", "deflate", "br", "identity, gzip", "x"])
def test_31_an_encoded_body_is_never_inflated(encoding: str) -> None:
    body = gzip.compress(to_bytes(paid()))
    wire = Wire()

    answer = send(
        b"",
        {"Content-Encoding": encoding, **sign(body)},
        CONTENT_LENGTH=str(len(body)),
        stream=wire,
    )

    assert result(answer) == (415, "UNSUPPORTED_ENCODING")
    assert wire.taken == 0
    assert not WebhookEvent.objects.exists()


@pytest.mark.parametrize("encoding", ["identity", " Identity ", ""])
def test_31_identity_is_no_encoding(buyer: User, monthly: Plan, encoding: str) -> None:
    body = to_bytes(paid())
    answer = send(body, {"Content-Encoding": encoding, **sign(body)})
    assert result(answer) == (200, "processed")


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("multipart/form-data; boundary=b", b'--b\r\nContent-Disposition: form-data; name="a"\r\n'),
        ("multipart/form-data", b"--"),
        ("application/x-www-form-urlencoded", b"a=1&" * 50_000),
        ("application/x-www-form-urlencoded", b"status=paid&external_payment_id=p"),
    ],
)
@pytest.mark.parametrize("proven", [True, False])
def test_32_forms_are_refused_without_being_taken_apart(
    monkeypatch: pytest.MonkeyPatch, content_type: str, body: bytes, proven: bool
) -> None:
    def taken_apart(*_args: object) -> None:
        raise AssertionError("nobody but the gate may touch the body")

    monkeypatch.setattr(MultiPartParser, "parse", taken_apart)
    monkeypatch.setattr(HttpRequest, "_load_post_and_files", taken_apart)

    answer = send(body, KEY if proven else {}, content_type=content_type)

    assert result(answer) == (400, "MALFORMED")
    assert {**effects(), "events": 0} == NOTHING


@pytest.mark.parametrize("content_type", ["", "text/plain", "application/json; charset=utf-16"])
def test_32_json_is_read_whatever_it_is_called(
    buyer: User, monthly: Plan, content_type: str
) -> None:
    body = to_bytes(paid())
    assert result(send(body, sign(body), content_type=content_type)) == (200, "processed")


@pytest.mark.parametrize("method", ["GET", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PAID"])
@pytest.mark.parametrize("slash", ["", "/"])
def test_33_only_post_is_answered(method: str, slash: str) -> None:
    answer = send(to_bytes(paid()), KEY, method=method, url=URL + slash)

    assert result(answer) == (405, "METHOD_NOT_ALLOWED")
    assert answer["Allow"] == "POST"
    assert effects() == NOTHING


def test_33_head_is_refused_too() -> None:
    assert send(b"", method="HEAD").status_code == 405


def test_33_a_method_in_a_header_or_field_is_not_believed(buyer: User, monthly: Plan) -> None:
    body = to_bytes({**paid(), "_method": "PUT"})
    answer: Any = send(body, {"X-HTTP-Method-Override": "PUT", **sign(body)})
    assert result(answer) == (200, "processed")
