"""The one function that turns a stored event into its effects.

The request runs it inline; recovery, linking, the back office and `reprocess_webhooks` run the
very same.
"""

from __future__ import annotations

from dataclasses import replace

from django.conf import settings
from django.db.models import F, Q
from django.db.models.functions import Now

from billing.codes import WAITING, ErrorCode
from billing.facts import NotAPayment, PaymentFact
from billing.linking import find_user
from billing.recording import Source, record, retract
from billing.settling import settle
from webhooks import judging
from webhooks.audit import BY_INTAKE, Request
from webhooks.finishing import finish, record_failure, write_audit
from webhooks.models import OPEN_STATUSES, EventStatus, ReviewState, WebhookEvent
from webhooks.outcomes import Change, Outcome, change_of, standing
from webhooks.providers import provider_of
from webhooks.providers.base import Delivery, Malformed
from webhooks.transactions import short_transaction

# Events of a payment that are done with once the payment is applied.
_SETTLED_BY_A_GRANT = WAITING | {
    ErrorCode.AMOUNT_MISMATCH,
    ErrorCode.PLAN_UNKNOWN,
    ErrorCode.PERIOD_OVERFLOW,
    ErrorCode.PAYMENT_DISMISSED,
}

_WAITS_FOR_A_GRANT = Q(error_code__in=_SETTLED_BY_A_GRANT) & (
    Q(status=EventStatus.FAILED_RETRYABLE) | Q(review=ReviewState.OPEN)
)
# That a person looked at a cancel and left it says nothing against the payment.
_SAYS_NO = Q(review=ReviewState.DISMISSED, status=EventStatus.FAILED_FINAL) & ~Q(
    error_code=ErrorCode.CANCEL_UNCONFIRMED
)


def process(
    event: WebhookEvent,
    *,
    said: PaymentFact | NotAPayment | None = None,
    request: Request = BY_INTAKE,
) -> Outcome:
    """`said` spares the caller who has just parsed the event a second parsing."""
    outcome = _attempt(event, said, request)
    if outcome.code == ErrorCode.USER_MISSING and find_user(outcome.change.email):
        # The user was created while we parked: neither saw the other's uncommitted row. Now that
        # the parking is committed, one of the two must.
        outcome = _attempt(event, said, replace(request, action=None))
    return outcome


def _attempt(
    event: WebhookEvent, said: PaymentFact | NotAPayment | None, request: Request
) -> Outcome:
    try:
        with short_transaction():
            return _walk(event, said, request)
    except Exception as error:  # noqa: BLE001
        # The effects are rolled back; that it failed is recorded outside of them.
        return record_failure(event, error)


def _walk(event: WebhookEvent, said: PaymentFact | NotAPayment | None, request: Request) -> Outcome:
    event, siblings = _lock(event)
    if not _may_run(event, request):
        write_audit(event, request, Change())
        return standing(event)
    if said is None:
        try:
            said = _read_again(event)
        except Malformed as error:
            return finish(event, request, judging.judge_malformed(error))
        if said.external_payment_id != event.external_payment_id:
            # It could not be read when it came, or was read as another payment's.
            event.external_payment_id = said.external_payment_id
            siblings = _lock(event)[1]
        if retract(_source(event), but_not=said.external_payment_id if _counts(said) else None):
            return finish(event, request, judging.judge_retracted())
    return replace(_settle(event, siblings, said, request), said=said)


def _settle(
    event: WebhookEvent,
    siblings: list[WebhookEvent],
    said: PaymentFact | NotAPayment,
    request: Request,
) -> Outcome:
    if isinstance(said, NotAPayment):
        return finish(event, request, judging.judge_non_payment(said))
    if not _counts(said):
        return finish(event, request, judging.judge_test_mode())
    recorded = record(said, _source(event))
    dismissed = any(row.review == ReviewState.DISMISSED for row in siblings)
    settlement = settle(recorded, request.decision, dismissed=dismissed)
    verdict = judging.judge(said, recorded, settlement, overruled=request.decision.overrule)
    return finish(event, request, verdict, change_of(recorded, settlement), siblings)


def _lock(event: WebhookEvent) -> tuple[WebhookEvent, list[WebhookEvent]]:
    """The event, and those of the same payment that its outcome may settle or that a person
    dismissed: all event locks are taken first and by id, so that two events of one payment
    cannot wait for each other."""
    wanted = Q(pk=event.pk)
    if event.external_payment_id is not None:
        wanted |= Q(
            _WAITS_FOR_A_GRANT | _SAYS_NO,
            provider=event.provider,
            external_payment_id=event.external_payment_id,
            signature_valid=True,
            conflict_of__isnull=True,
        )
    locked = list(
        WebhookEvent.objects.filter(wanted)
        .annotate(age=Now() - F("received_at"))
        .defer("payload", "raw_body", "headers")
        .order_by("pk")
        .select_for_update(no_key=True)
    )
    (own,) = (row for row in locked if row.pk == event.pk)
    return own, [row for row in locked if row is not own]


def _may_run(event: WebhookEvent, request: Request) -> bool:
    """That a row exists never means "done": its status does."""
    if event.signature_valid is not True or event.review == ReviewState.DISMISSED:
        return False
    if event.conflict_of_id and event.review != ReviewState.RESOLVED:
        # Until a person believes it.
        return request.decision.overrule
    if event.status in OPEN_STATUSES:
        return True
    if event.status == EventStatus.FAILED_FINAL:
        # Who waited too long still gets what was paid for, once the user appears.
        return request.actor.is_person or event.error_code in WAITING
    # Say, after a provider's file was mended.
    return request.actor.is_person and event.status == EventStatus.IGNORED


def _counts(said: PaymentFact | NotAPayment) -> bool:
    return isinstance(said, PaymentFact) and (said.live or settings.ACCEPT_TEST_PAYMENTS)


def _source(event: WebhookEvent) -> Source:
    return Source(event.provider, event.pk, event.event_key, event.received_at)


def _read_again(event: WebhookEvent) -> PaymentFact | NotAPayment:
    body, headers = WebhookEvent.objects.values_list("raw_body", "headers").get(pk=event.pk)
    return provider_of(event.provider).parse(Delivery(body=bytes(body), headers=headers))
