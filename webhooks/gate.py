"""What is refused before anybody looks inside."""

from django.conf import settings
from django.http import HttpRequest
from django.http.request import UnreadablePostError

from webhooks.errors import Refused
from webhooks.providers.base import Delivery


def admit(request: HttpRequest) -> Delivery:
    if request.headers.get("Content-Encoding", "identity").strip().lower() not in {"", "identity"}:
        # Never inflated: a kilobyte can become a gigabyte.
        raise Refused(415, "UNSUPPORTED_ENCODING", "send the body without Content-Encoding")
    headers = {name.lower(): value for name, value in request.headers.items()}
    announced = _announced_length(request)
    return Delivery(
        body=_read_body(request, announced),
        headers=headers,
        length_announced=announced is not None,
    )


def source_address(request: HttpRequest) -> str | None:
    """The peer's address. Headers that anybody can send are not looked at."""
    return request.META.get("REMOTE_ADDR") or None


def _read_body(request: HttpRequest, announced: int | None) -> bytes:
    """At most the limit and one byte, whatever Content-Length claims.

    Read from the WSGI input itself: Django's own stream believes a missing Content-Length
    (a chunked body) to mean an empty one.
    """
    limit = settings.WEBHOOK_MAX_BODY_BYTES
    if announced is not None and announced > limit:
        raise _too_large()
    left = limit + 1 if announced is None else announced
    stream, chunks = request.META["wsgi.input"], []
    try:
        while left > 0 and (chunk := stream.read(min(left, 65_536))):
            chunks.append(chunk)
            left -= len(chunk)
    except (OSError, UnreadablePostError) as error:
        raise _cut_off() from error
    body = b"".join(chunks)
    if len(body) > limit:
        raise _too_large()
    if announced is not None and len(body) < announced:
        raise _cut_off()
    return body


def _announced_length(request: HttpRequest) -> int | None:
    text = (request.META.get("CONTENT_LENGTH") or "").strip()
    if not (text.isascii() and text.isdigit()):
        return None
    # int() refuses thousands of digits; what has more than 18 is too large anyway.
    return int(text.lstrip("0")[:18] or "0")


def _too_large() -> Refused:
    return Refused(413, "BODY_TOO_LARGE", "the body is over the limit")


def _cut_off() -> Refused:
    return Refused(400, "MALFORMED", "the body is shorter than announced")
