"""Reading what callers send: strict, and clear about which field is wrong."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from django.core.exceptions import ValidationError
from django.db.models import Model, QuerySet
from django.http import QueryDict
from rest_framework.pagination import CursorPagination
from rest_framework.request import Request

from webhooks.providers.base import Malformed
from webhooks.providers.fields import optional_id, optional_time

# As the product writes them: Python's own parser also takes braces, URNs and missing hyphens.
UUID_PATTERN = "[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
_UUID = re.compile(UUID_PATTERN)

Reader = Callable[[Mapping[str, Any], str], Any]
# By the parameter's name: the lookup it stands for, and how its value is read.
Filters = Mapping[str, tuple[str, Reader]]


def required_uuid(data: Mapping[str, Any], name: str) -> UUID:
    value = optional_uuid(data, name)
    if value is None:
        raise Malformed(f"{name} is required")
    return value


def optional_uuid(data: Mapping[str, Any], name: str) -> UUID | None:
    value = data.get(name)
    if value is None:
        return None
    if not isinstance(value, str) or not _UUID.fullmatch(value.lower()):
        raise Malformed(f"{name} must be a UUID")
    return UUID(value)


def one_of(words: list[str]) -> Reader:
    def read(data: Mapping[str, Any], name: str) -> str:
        value = data.get(name)
        if value not in words:
            raise Malformed(f"{name} must be one of {', '.join(words)}")
        return str(value)

    return read


def text(data: Mapping[str, Any], name: str) -> str:
    value = optional_id(dict(data), name)
    if value is None:
        raise Malformed(f"{name} is empty")
    return value


def moment(data: Mapping[str, Any], name: str) -> Any:
    value = optional_time(dict(data), name)
    if value is None:
        raise Malformed(f"{name} is empty")
    return value


def chosen(params: QueryDict, filters: Filters) -> dict[str, Any]:
    """The lookups that the query asks for. A misspelled filter is refused: without it the answer
    would be everything."""
    if unknown := sorted(params.keys() - filters.keys() - {"cursor", "limit"}):
        known = ", ".join([*filters, "limit", "cursor"])
        raise Malformed(f"{len(unknown)} unknown query parameter(s); known are {known}")
    given = {name: params[name] for name in params}
    return {lookup: read(given, name) for name, (lookup, read) in filters.items() if name in given}


class NewestFirst(CursorPagination):
    """By position, not by offset: pages do not shift while rows arrive, and a late page costs no
    more than the first."""

    page_size = 50
    page_size_query_param = "limit"
    max_page_size = 200


def page(
    request: Request,
    rows: QuerySet[Any],
    *,
    tie_breaker: str,
    show: Callable[[Any], dict[str, Any]],
) -> dict[str, Any]:
    pages = NewestFirst()
    pages.ordering = ("-created_at", f"-{tie_breaker}")
    try:
        found: list[Model] | None = pages.paginate_queryset(rows, request)
    except ValidationError as error:
        raise Malformed("cursor is not one of ours") from error
    return {
        "next": pages.get_next_link(),
        "previous": pages.get_previous_link(),
        "results": [show(row) for row in found or ()],
    }
