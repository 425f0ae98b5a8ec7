"""JSON without the surprises: what two parsers could read differently is refused."""

import json
import re
from decimal import Decimal, InvalidOperation
from typing import Any

from webhooks.providers.base import Malformed

_MAX_NUMBER_CHARS = 64
_MAX_EXPONENT = 308
# Python's own limit depends on how deep the caller's stack is; this one does not.
_MAX_DEPTH = 64
# A valid surrogate pair, then what JSONB refuses (NUL, a lone surrogate), then any other escape:
# each escape is taken as a whole, so that "\\u0000" (a backslash and text) is left alone.
_ESCAPE = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    r"|(?P<refused>\\u(?:0000|[dD][89a-fA-F][0-9a-fA-F]{2}))"
    r"|\\."
)


def parse_object(body: bytes) -> dict[str, Any]:
    """Numbers come out as int or Decimal, never float."""
    try:
        parsed = json.loads(
            _text(body),
            object_pairs_hook=_unique_keys,
            parse_int=_integer,
            parse_float=_decimal,
            parse_constant=_constant,
        )
    except RecursionError as error:
        raise Malformed("body is nested too deeply") from error
    except json.JSONDecodeError as error:
        raise Malformed("body is not JSON") from error
    if not isinstance(parsed, dict):
        raise Malformed("body is not a JSON object")
    _check_depth(parsed)
    return parsed


def for_jsonb(body: bytes) -> str:
    """The same JSON text with what JSONB cannot hold replaced by U+FFFD."""
    return _ESCAPE.sub(lambda m: "\\ufffd" if m["refused"] else m[0], _text(body))


def _check_depth(parsed: Any) -> None:
    level = [parsed]
    for _ in range(_MAX_DEPTH):
        nested = (
            child
            for node in level
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        )
        level = list(nested)
        if not level:
            return
    raise Malformed("body is nested too deeply")


def _text(body: bytes) -> str:
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Malformed("body is not UTF-8") from error
    # json.loads(bytes) would take UTF-16 and a byte-order mark.
    if text.startswith("\ufeff") or "\0" in text:
        raise Malformed("body is not plain UTF-8 JSON")
    return text


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Malformed("an object has the same key twice")
    return found


def _integer(literal: str) -> int:
    # Thousands of digits raise a plain ValueError in int().
    if len(literal) > _MAX_NUMBER_CHARS:
        raise Malformed("a number is too long")
    return int(literal)


def _decimal(literal: str) -> Decimal:
    if len(literal) > _MAX_NUMBER_CHARS:
        raise Malformed("a number is too long")
    try:
        number = Decimal(literal)
    except InvalidOperation as error:  # an exponent of twenty digits
        raise Malformed("a number is out of range") from error
    if not number.is_finite() or abs(number.adjusted()) > _MAX_EXPONENT:
        raise Malformed("a number is out of range")
    return number


def _constant(literal: str) -> Any:
    raise Malformed("NaN and Infinity are not JSON")
