"""Reading single fields of a payload: strict where it matters, clear about what is wrong."""

from datetime import UTC, datetime
from typing import Any

from webhooks.providers.base import Malformed

MAX_ID_CHARS = 255
MAX_EMAIL_CHARS = 254


def required_id(payload: dict[str, Any], name: str) -> str:
    value = optional_id(payload, name)
    if value is None:
        raise Malformed(f"{name} is required")
    return value


def optional_id(payload: dict[str, Any], name: str) -> str | None:
    """An id is compared exactly, and never cut. An integer is its decimal digits. Blank is none."""
    value = payload.get(name)
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise Malformed(f"{name} must be a string or an integer")
    if len(value) > MAX_ID_CHARS:
        raise Malformed(f"{name} is longer than {MAX_ID_CHARS} characters")
    if not storable(value):
        raise Malformed(f"{name} has characters that cannot be stored")
    return value if value.strip() else None


def optional_email(payload: dict[str, Any], name: str) -> str | None:
    """Never a reason to refuse a payment: what cannot be an address is no address."""
    value = payload.get(name)
    if not isinstance(value, str) or not storable(value):
        return None
    value = value.strip()
    return value if "@" in value and len(value) <= MAX_EMAIL_CHARS else None


def optional_time(payload: dict[str, Any], name: str) -> datetime | None:
    """ISO 8601; without a zone it is UTC."""
    value = payload.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str) or not value.isascii() or len(value) > 40:
        raise Malformed(f"{name} must be an ISO 8601 time")
    try:
        moment = datetime.fromisoformat(value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise Malformed(f"{name} must be an ISO 8601 time") from error


def optional_flag(payload: dict[str, Any], name: str) -> bool:
    value = payload.get(name, False)
    if value is None or isinstance(value, bool):
        return bool(value)
    raise Malformed(f"{name} must be true or false")


def storable(value: str) -> bool:
    """PostgreSQL's text holds neither NUL nor half a surrogate pair."""
    return "\0" not in value and not any("\ud800" <= char <= "\udfff" for char in value)
