"""One call, straight down: https → who → may they → read the body → act once → answer → log."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, ClassVar

import structlog
from django.http import HttpRequest
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from webhooks import gate
from webhooks.api.access import (
    MayCall,
    Rights,
    ServiceTokenAuthentication,
    StaffSession,
    actor_of,
    refuse_plain_http,
)
from webhooks.api.idempotency import Answer, answer_once, asked
from webhooks.api.refusals import as_refusal
from webhooks.audit import Actor
from webhooks.errors import Refused
from webhooks.providers.strict_json import parse_object
from webhooks.transactions import short_transaction
from webhooks.views import AnyAcceptHeader, PublicView

logger = structlog.get_logger("api")


class ApiView(APIView):
    # The first one's challenge makes the answer to strangers a 401. Sessions are checked for CSRF.
    authentication_classes = (ServiceTokenAuthentication, StaffSession)
    permission_classes = (MayCall,)
    # The gate reads the body: its bytes are needed, and no more of them than the limit.
    parser_classes = ()
    content_negotiation_class = AnyAcceptHeader
    http_method_names = ["get", "head", "post"]
    rights: ClassVar[Rights]

    def setup(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().setup(request, *args, **kwargs)
        self.started = time.monotonic()

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        refuse_plain_http(request)
        super().initial(request, *args, **kwargs)

    def show(self, read: Callable[[], Any]) -> Response:
        with short_transaction():
            return Response(read())

    def act(self, request: Request, act: Callable[[dict[str, Any], Actor], Answer]) -> Response:
        actor = actor_of(request)
        body = _read_body(request)
        answer = answer_once(
            asked(request._request, client=actor.name, body=body),
            lambda: act(parse_object(body) if body else {}, actor),
        )
        headers = {"Idempotency-Replayed": "true"} if answer.replayed else None
        return Response(answer.body, status=answer.http_status, headers=headers)

    def handle_exception(self, exc: Exception) -> Response:
        return super().handle_exception(as_refusal(exc) or exc)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        response["Cache-Control"] = "no-store"
        error = response.data.get("error") if isinstance(response.data, dict) else None
        logger.info(
            "api_call",
            method=request.method if request.method in ("GET", "HEAD", "POST") else "OTHER",
            view=type(self).__name__,
            client=_caller(request),
            http_status=response.status_code,
            error_code=error["code"] if error else None,
            replayed="Idempotency-Replayed" in response,
            duration_ms=round((time.monotonic() - self.started) * 1000, 1),
        )
        return super().finalize_response(request, response, *args, **kwargs)


class NoSuchUrl(PublicView):
    """Whatever else is under /api/: the same shape of error, and no page of HTML."""

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        raise Refused(404, "NOT_FOUND", "there is nothing at this address")


def _read_body(request: Request) -> bytes:
    body = gate.admit(request._request).body
    if body and request._request.content_type != "application/json":
        raise Refused(415, "UNSUPPORTED_MEDIA_TYPE", "send application/json")
    return body


def _caller(request: Request) -> str | None:
    """Asking a request that was not authenticated for its user would authenticate it now, and
    fail once more."""
    user = getattr(request, "_user", None)
    return actor_of(request).name if user is not None and user.is_authenticated else None
