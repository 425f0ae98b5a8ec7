"""What the database itself must refuse, whatever the code above it thinks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
from django.db import DatabaseError, connection, transaction


@contextmanager
def refused(by: str) -> Iterator[None]:
    """By the constraint of that name, or by the trigger or type whose error says so."""
    with pytest.raises(DatabaseError) as error, transaction.atomic():
        yield
    cause = error.value.__cause__
    assert isinstance(cause, psycopg.Error)
    assert by in {cause.diag.constraint_name, cause.sqlstate}, cause


def definition(index: str) -> str:
    """An index as PostgreSQL knows it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT indexdef FROM pg_indexes WHERE indexname = %s", [index])
        rows = cursor.fetchall()
    assert rows, f"there is no index {index}"
    return str(rows[0][0])


def constraints() -> set[str]:
    """Every check constraint and unique index of ours that has a name given by us."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            SELECT conname FROM pg_constraint WHERE contype IN ('c', 'u') AND convalidated
            UNION SELECT relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid
            WHERE indisunique AND indisvalid
            """
        )
        return {row[0] for row in cursor.fetchall()}
