"""JSON without the surprises; what is accepted is also what PostgreSQL can hold."""

from __future__ import annotations

import contextlib
import json
from decimal import Decimal
from typing import Any

import pytest
from django.db import connection
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from webhooks.providers.base import Malformed
from webhooks.providers.strict_json import for_jsonb, parse_object

# Escapes of every kind, and what they could be mistaken for.
_ESCAPES = [
    r"\u0000",
    r"\ud800",
    r"\udc00",
    r"\ud83d\ude00",
    r"\\",
    r"\\u0000",
    r"\"",
    r"\n",
    r"\/",
    r"\uFFFF",
    r"\uD800",
    r"\u00e9",
]
_PLAIN = ["u0000", "d800", "a", "ж", "\u2028", "\U0001f600", "\x7f"]
_PIECES = st.sampled_from([*_ESCAPES, *_PLAIN])
_STRINGS = st.lists(_PIECES, max_size=6).map(lambda pieces: f'"{"".join(pieces)}"')
_NUMBERS = st.one_of(
    st.integers(-(10**30), 10**30).map(str),
    st.from_regex(r"\A-?(0|[1-9][0-9]{0,20})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?\Z"),
)
_VALUES = st.recursive(
    st.one_of(_STRINGS, _NUMBERS, st.sampled_from(["true", "false", "null"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map(lambda items: f"[{', '.join(items)}]"),
        st.lists(st.tuples(_STRINGS, inner), max_size=4).map(
            lambda pairs: "{" + ",".join(f"{key}:{value}" for key, value in pairs) + "}"
        ),
    ),
    max_leaves=8,
)
_many = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


def _stored(text: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute("SELECT %s::jsonb::text", [text])
        return json.loads(cursor.fetchone()[0], parse_float=Decimal)


def _replaced(value: Any) -> Any:
    """What JSONB cannot hold, replaced in the parsed value instead of in the text."""
    if isinstance(value, str):
        return "".join("\ufffd" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in value)
    if isinstance(value, list):
        return [_replaced(item) for item in value]
    if isinstance(value, dict):
        return {_replaced(key): _replaced(item) for key, item in value.items()}
    return value


@pytest.mark.django_db
@_many
@given(_VALUES)
@example(r'"\ud800\ud83d\ude00"')
@example(r'"\\\u0000"')
@example('"' + "x" * 10_000 + '"')
@example("1e308")
@example("-0.0")
@example("[" * 900 + "]" * 900)
def test_postgresql_holds_whatever_is_accepted(value: str) -> None:
    body = f'{{"v": {value}}}'.encode()
    try:
        parsed = parse_object(body)
    except Malformed:
        return  # Duplicate keys, mostly.
    assert _stored(for_jsonb(body)) == _replaced(parsed)


@_many
@given(st.binary(max_size=60))
def test_any_bytes_are_an_object_or_malformed(body: bytes) -> None:
    with contextlib.suppress(Malformed):
        assert isinstance(parse_object(body), dict)


@_many
@given(st.text(max_size=40))
def test_any_text_is_an_object_or_malformed(text: str) -> None:
    body = ('{"a": ' + text + "}").encode("utf-8", "surrogatepass")
    with contextlib.suppress(Malformed):
        assert isinstance(parse_object(body), dict)


def test_numbers_are_int_or_decimal_and_exact() -> None:
    parsed = parse_object(b'{"a": 990.10, "b": 7, "c": 0.1, "d": 1.5e3, "e": -0}')
    assert parsed == {"a": Decimal("990.10"), "b": 7, "c": Decimal("0.1"), "d": 1500, "e": 0}
    assert str(parsed["a"]) == "990.10"
    assert not any(isinstance(value, float) for value in parsed.values())


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b"1",
        b'"x"',
        b"{'a': 1}",
        b'{"a": 1,}',
        b'{"a": 1} {"b": 2}',
        b'{"a": 01}',
        b'{"a": .5}',
        b'{"a": +1}',
        b'{"a": 0x10}',
        b'{"a": "\x01"}',
        b'{"a": "\n"}',
        b'{"a": "\\x41"}',
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": -Infinity}',
        b'{"a": 1e400}',
        b'{"a": 1e-400}',
        b'{"a": 1, "a": 1}',
        b'{"a": {"b": 1, "b": 2}}',
        b'{"a": 1, "\\u0061": 2}',
        b"\xef\xbb\xbf{}",
        b'{"a": "\xff"}',
        b'{"a": "\xed\xa0\x80"}',
        b"{}\0",
        '{"a": 1}'.encode("utf-16"),
        '{"a": 1}'.encode("utf-16-le"),
        b'{"a": ' + b"9" * 65 + b"}",
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": 0.' + b"9" * 65 + b"}",
        b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    ],
)
def test_it_refuses_what_two_parsers_could_read_differently(body: bytes) -> None:
    with pytest.raises(Malformed):
        parse_object(body)


@pytest.mark.parametrize("body", [b"{}", b' \r\n\t{"a": 1} ', '{"ж": "\U0001f600"}'.encode()])
def test_it_takes_plain_json(body: bytes) -> None:
    assert parse_object(body) == json.loads(body)
