"""One shape for every error answer, and nothing in it that tells an attacker more."""

from typing import Any

import structlog
from django.db import Error as DatabaseError
from rest_framework.exceptions import APIException
from rest_framework.response import Response
from rest_framework.views import exception_handler

logger = structlog.get_logger("webhooks")

RETRY_AFTER_S = 5


class Refused(APIException):
    def __init__(self, http_status: int, code: str, message: str) -> None:
        super().__init__(message, code)
        self.status_code = http_status


class DatabaseAway(Refused):
    def __init__(self) -> None:
        super().__init__(503, "UNAVAILABLE", "try again later")


def request_id() -> str:
    """Bound by django-structlog's middleware; the same id is on every log line of the request."""
    return str(structlog.contextvars.get_contextvars().get("request_id", ""))


def error_response(exception: Exception, context: dict[str, Any]) -> Response | None:
    if isinstance(exception, DatabaseError):
        # Whatever it is, the event is not stored: the provider must send it again.
        logger.error("database_error", exc_info=exception)
        exception = DatabaseAway()
    response = exception_handler(exception, context)
    if response is None:
        response = Response(status=500)
        code, message = "INTERNAL_ERROR", "something went wrong on our side"
        logger.error("unexpected_error", exc_info=exception)
    else:
        detail = getattr(exception, "detail", None)
        code = str(getattr(detail, "code", None) or "NOT_FOUND").upper()
        message = str(detail or "not found")
    if response.status_code == 503:
        response["Retry-After"] = str(RETRY_AFTER_S)
    response.data = {"error": {"code": code, "message": message}, "request_id": request_id()}
    return response
