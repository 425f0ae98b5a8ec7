"""One webhook, straight down."""

from __future__ import annotations

from typing import Any

import structlog
from django.db import Error as DatabaseError
from django.db import InterfaceError, OperationalError, connection
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_GET
from rest_framework.negotiation import BaseContentNegotiation
from rest_framework.renderers import BaseRenderer
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from billing.codes import ErrorCode
from billing.facts import NotAPayment, PaymentFact
from webhooks import forgeries, gate, inbox, metrics, security_log
from webhooks.backlog import Unavailable, read_backlog
from webhooks.errors import DatabaseAway, Refused, request_id
from webhooks.inbox import Stored
from webhooks.logbook import Line
from webhooks.models import OPEN_STATUSES
from webhooks.outcomes import Outcome, standing
from webhooks.process import process
from webhooks.providers import enabled_providers, find_provider
from webhooks.providers.base import Delivery, Malformed, Proof, Provider, Rejected, Result
from webhooks.running import tell

logger = structlog.get_logger("webhooks")


class AnyAcceptHeader(BaseContentNegotiation):
    """Providers send all sorts of Accept headers and read none of what we answer."""

    def select_parser(self, request: Request, parsers: Any) -> None:
        return None

    def select_renderer(
        self, request: Request, renderers: Any, format_suffix: str | None = None
    ) -> tuple[BaseRenderer, str]:
        return renderers[0], renderers[0].media_type


class PublicView(APIView):
    authentication_classes = ()
    permission_classes = ()
    # Nobody but the gate may touch the body, and it wants the bytes.
    parser_classes = ()
    content_negotiation_class = AnyAcceptHeader


class WebhookView(PublicView):
    http_method_names = ["post"]

    def setup(self, request: HttpRequest, *args: Any, **kwargs: Any) -> None:
        super().setup(request, *args, **kwargs)
        self.line = Line()

    def post(self, request: Request, slug: str) -> Response:
        line = self.line
        provider = _find_open(slug)
        line.provider = provider.slug
        delivery = gate.admit(request._request)
        proof = _verify(provider, delivery, line, source_ip=gate.source_address(request._request))
        said = _parse(provider, delivery)
        line.said = None if isinstance(said, Malformed) else said
        stored = _store(provider, delivery, proof, said)
        line.event = stored.event
        outcome = line.outcome = _process(stored, said)
        tell(outcome)
        if isinstance(said, Malformed):
            raise Refused(400, ErrorCode.MALFORMED, str(said))
        answer = provider.acknowledge(outcome.result, str(outcome.event.pk), request_id())
        return Response(answer.body, status=answer.http_status)

    def finalize_response(self, request: Request, response: Any, *args: Any, **kwargs: Any) -> Any:
        """Whatever the answer is, it is counted and leaves one line."""
        line = self.line
        line.http_status = response.status_code
        if isinstance(response.data, dict) and (error := response.data.get("error")):
            line.error_code, line.error_message = error["code"], error["message"]
        metrics.requests.labels(line.provider, response.status_code).inc()
        metrics.duration_ms.labels(line.provider).observe(line.duration_ms)
        line.write()
        return super().finalize_response(request, response, *args, **kwargs)


class HealthView(PublicView):
    http_method_names = ["get", "head"]

    def get(self, request: Request) -> Response:
        line = Line()
        try:
            backlog = read_backlog()
        except Unavailable as error:
            raise DatabaseAway from error
        waiting, review = backlog.events["FAILED_RETRYABLE"], backlog.events["FAILED_FINAL"]
        return Response(
            {
                "status": "ok",
                "providers": enabled_providers(),
                "response_time_ms": line.duration_ms,
                "errors": {"failed_retryable": waiting, "in_review": review},
                "oldest_due_s": round(backlog.oldest_due_s, 1),
                "stuck": backlog.stuck,
            }
        )


@require_GET
def metrics_view(request: HttpRequest) -> HttpResponse:
    body, content_type = metrics.exposition()
    return HttpResponse(body, content_type=content_type)


def _find_open(slug: str) -> Provider:
    provider = find_provider(slug)
    if provider is None or not provider.enabled:
        raise Refused(404, "NOT_FOUND", "no such webhook")
    return provider


def _verify(provider: Provider, delivery: Delivery, line: Line, *, source_ip: str | None) -> Proof:
    try:
        proof = provider.verify(delivery)
    except Rejected as rejected:
        line.signature_valid = False
        said = _parse(provider, delivery)
        if isinstance(said, Malformed):
            raise Refused(400, ErrorCode.MALFORMED, str(said)) from rejected
        line.said = said
        metrics.invalid_signature.labels(provider.slug).inc()
        kind = security_log.Kind(rejected.code.lower())
        security_log.note(kind, provider=provider.slug, why=rejected.why, source=source_ip)
        try:
            forgeries.keep_sample(provider, delivery, rejected.code, said, source_ip=source_ip)
        except DatabaseError as error:
            # The sample is a courtesy; the answer is the same without it.
            logger.warning("forged_sample_not_kept", exc_info=error)
        raise _not_proven(rejected) from rejected
    line.signature_valid = True
    return proof


def _not_proven(rejected: Rejected) -> Refused:
    if rejected.code == ErrorCode.TIMESTAMP_EXPIRED:
        return Refused(400, rejected.code, "the signed time is not within the window")
    return Refused(401, ErrorCode.INVALID_SIGNATURE, "the delivery does not prove its sender")


def _parse(provider: Provider, delivery: Delivery) -> PaymentFact | NotAPayment | Malformed:
    try:
        return provider.parse(delivery)
    except Malformed as error:
        return error
    except Exception:
        # A mistake of ours must not keep the bytes out: kept for review, reprocessed when mended.
        logger.exception("parse_failed", provider=provider.slug)
        return Malformed("the body could not be read")


def _store(
    provider: Provider,
    delivery: Delivery,
    proof: Proof,
    said: PaymentFact | NotAPayment | Malformed,
) -> Stored:
    """A connection that was open when the database restarted is found dead only when used. The
    insert is idempotent, so it is tried once more on a new one."""
    was_open = connection.connection is not None
    try:
        return inbox.store(provider, delivery, proof, said)
    except (OperationalError, InterfaceError):
        if not was_open or connection.in_atomic_block or connection.is_usable():
            raise
        connection.close()
        return inbox.store(provider, delivery, proof, said)


def _process(stored: Stored, said: PaymentFact | NotAPayment | Malformed) -> Outcome:
    event = stored.event
    if stored.is_conflict:
        return Outcome(Result.CONFLICT, event, ErrorCode.PAYLOAD_CONFLICT)
    if isinstance(said, Malformed):
        return Outcome(Result.FAILED_FINAL, event, ErrorCode.MALFORMED, str(said))
    if event.status in OPEN_STATUSES:
        # What was stored first is what counts, and what any retry will read.
        return process(event, said=said if stored.same_bytes else None)
    return standing(event)
