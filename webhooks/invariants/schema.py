"""The database's own guards are all there, and on."""

from __future__ import annotations

from collections.abc import Iterator

from django.apps import apps
from django.db import connection, models

_OUR_APPS = ("subscriptions", "billing", "webhooks")
# (table, trigger), from the migrations.
_APPEND_ONLY = (
    ("billing_fact", "append_only"),
    ("billing_fact", "append_only_but_for_redaction"),
    ("billing_walletentry", "append_only"),
    ("webhooks_auditentry", "append_only"),
)


def constraints_are_there_and_valid() -> Iterator[str]:
    """Every constraint, foreign key and unique rule of the models is in the database, and each was
    checked against all rows."""
    in_force = _names(
        """
        SELECT relname, conname FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid
        WHERE relname = ANY(%(tables)s) AND convalidated
        """
    ) | _names(_VALID_INDEXES)
    referring = _names(
        """
        SELECT relname, attname FROM pg_constraint
        JOIN pg_class ON pg_class.oid = conrelid
        JOIN pg_attribute ON attrelid = conrelid AND conkey = ARRAY[attnum]
        WHERE relname = ANY(%(tables)s) AND contype = 'f' AND convalidated
        """
    )
    unique = _names(
        """
        SELECT relname, attname FROM pg_index
        JOIN pg_class ON pg_class.oid = indrelid
        JOIN pg_attribute ON attrelid = indrelid AND attnum = indkey[0]
        WHERE relname = ANY(%(tables)s) AND indisunique AND indisvalid
            AND indnatts = 1 AND indpred IS NULL AND indexprs IS NULL
        """
    )
    for model in _models():
        table = model._meta.db_table
        for constraint in model._meta.constraints:
            if (table, constraint.name) not in in_force:
                yield f"{table}.{constraint.name}"
        for field in model._meta.local_concrete_fields:
            if isinstance(field, models.ForeignKey) and (table, field.column) not in referring:
                yield f"{table}.{field.column} references"
            if field.unique and (table, field.column) not in unique:
                yield f"{table}.{field.column} unique"


def indexes_are_there_and_valid() -> Iterator[str]:
    """Every index of the models is in the database, and none of ours is half-built."""
    valid = _names(_VALID_INDEXES)
    for model in _models():
        table = model._meta.db_table
        for index in model._meta.indexes:
            if (table, index.name) not in valid:
                yield f"{table}.{index.name}"
    for table, name in sorted(_names(_INDEXES) - valid):
        yield f"{table}.{name}"


def append_only_triggers_are_on() -> Iterator[str]:
    """Facts, wallet entries and audit rows cannot be changed or deleted."""
    on = _names(
        """
        SELECT relname, tgname FROM pg_trigger JOIN pg_class ON pg_class.oid = tgrelid
        WHERE relname = ANY(%(tables)s) AND NOT tgisinternal AND tgenabled IN ('O', 'A')
        """
    )
    for table, trigger in _APPEND_ONLY:
        if (table, trigger) not in on:
            yield f"{table}.{trigger}"


_INDEXES = """
    SELECT relation.relname, index.relname FROM pg_index
    JOIN pg_class AS index ON index.oid = indexrelid
    JOIN pg_class AS relation ON relation.oid = indrelid
    WHERE relation.relname = ANY(%(tables)s)
"""
_VALID_INDEXES = f"{_INDEXES} AND indisvalid AND indisready AND indislive"


def _names(sql: str) -> set[tuple[str, str]]:
    tables = [model._meta.db_table for model in _models()]
    with connection.cursor() as cursor:
        cursor.execute(sql, {"tables": tables})
        return {(table, name) for table, name in cursor.fetchall()}


def _models() -> list[type[models.Model]]:
    return [
        model
        for app in _OUR_APPS
        for model in apps.get_app_config(app).get_models(include_auto_created=True)
        if not model._meta.proxy
    ]


RULES = (
    constraints_are_there_and_valid,
    indexes_are_there_and_valid,
    append_only_triggers_are_on,
)
