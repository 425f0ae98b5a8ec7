"""How a rule asks: what breaks it is streamed, so that the memory needed is always the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django.db import connection

# Yields the id of whatever breaks it; the docstring says in words what must hold.
Rule = Callable[[], Iterator[str]]

_FETCH = 2000


def broken_by(sql: str, **params: Any) -> Iterator[str]:
    """The first column of each row that the query finds; it must find none. The cursor is the
    server's, so it needs a transaction around it."""
    with connection.chunked_cursor() as cursor:
        cursor.execute(sql, params)
        while rows := cursor.fetchmany(_FETCH):
            for row in rows:
                yield str(row[0])
