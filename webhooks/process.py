"""The one function that turns a stored event into its effects.

The request runs it inline; recovery, linking, the back office and `reprocess_webhooks` run the
very same.
"""

from __future__ import annotations

from dataclasses import replace

from django.conf import settings
from django.db.models import F, Q
from django.db.models.expressions import RawSQL
from django.db.models.functions import Now

from billing.codes import WAITING, ErrorCode
from billing.facts import Name, NotAPayment, PaymentFact
from billing.linking import find_user, order_exists
from billing.outbox.messages import write
from billing.recording import (
    JoinsPayments,
    NameTakenMeanwhile,
    PaymentUnknown,
    Source,
    names_of,
    record,
    retract,
)
from billing.settlements import Decision
from billing.settling import settle
from billing.telling import messages_of
from webhooks import archive, judging
from webhooks.audit import BY_INTAKE, Request
from webhooks.finishing import finish, record_failure, write_audit
from webhooks.judging import Verdict
from webhooks.models import OPEN_STATUSES, EventStatus, ReviewState, WebhookEvent
from webhooks.outcomes import Change, Outcome, standing
from webhooks.providers import provider_of
from webhooks.providers.base import Delivery, Malformed
from webhooks.transactions import short_transaction

# Of two events that name one charge differently for the first time one must look again; with more
# of them at once each look still settles one.
_LOOKS = 5
# Events of a payment that its being applied, or what a person decides, may settle.
_OPEN = Q(status=EventStatus.FAILED_RETRYABLE) | Q(review=ReviewState.OPEN)


def process(
    event: WebhookEvent,
    *,
    said: PaymentFact | NotAPayment | None = None,
    request: Request = BY_INTAKE,
) -> Outcome:
    """`said` spares the caller who has just parsed the event a second parsing."""
    outcome = _attempt(event, said, request)
    if outcome.code in WAITING and _is_there_now(outcome.change):
        # It appeared while we parked: neither saw the other's uncommitted row. Now that the parking
        # is committed, one of the two must.
        outcome = _attempt(event, said, replace(request, action=None))
    return outcome


def _is_there_now(change: Change) -> bool:
    return bool(find_user(change.email)) or order_exists(change.merchant_uid)


def _attempt(
    event: WebhookEvent,
    said: PaymentFact | NotAPayment | None,
    request: Request,
    looks: int = _LOOKS,
) -> Outcome:
    try:
        with short_transaction():
            return _walk(event, said, request)
    except Exception as error:  # noqa: BLE001
        if isinstance(error, NameTakenMeanwhile) and looks > 1:
            return _attempt(event, said, request, looks - 1)
        # The effects are rolled back; that it failed is recorded outside of them.
        return record_failure(event, request, error)


def _walk(event: WebhookEvent, said: PaymentFact | NotAPayment | None, request: Request) -> Outcome:
    doubt: Verdict | None = None
    names = _names(event, said)
    event, siblings = _lock(event, names)
    if not _may_run(event, request):
        write_audit(event, request, Change())
        return standing(event)
    if said is None:
        try:
            said = _read_again(event)
        except Malformed as error:
            return finish(event, request, judging.judge_malformed(error))
        event.external_payment_id = said.external_payment_id
        if (names_now := _names(event, said)) != names:
            # It could not be read when it came, or was read as another payment's.
            names, siblings = names_now, _lock(event, names_now)[1]
        doubt = _retract(event, names if _counts(said) else [])
    return replace(_settle(event, siblings, said, request, doubt), said=said)


def _retract(event: WebhookEvent, names: list[Name]) -> Verdict | None:
    """Settle the payments that this event was read as speaking of and no longer speaks of. What
    cannot be put right by itself is for a person."""
    doubt = None
    for recorded in retract(_source(event), but_not=names):
        settlement = settle(recorded, Decision())
        write(*messages_of(settlement, event_id=event.pk, event_type=event.event_type))
        if settlement.objection:
            doubt = judging.judge_retracted(recorded.payment, settlement.objection)
    return doubt


def _settle(
    event: WebhookEvent,
    siblings: list[WebhookEvent],
    said: PaymentFact | NotAPayment,
    request: Request,
    doubt: Verdict | None,
) -> Outcome:
    if isinstance(said, NotAPayment):
        return finish(event, request, doubt or judging.judge_non_payment(said))
    if not _counts(said):
        return finish(event, request, doubt or judging.judge_test_mode())
    if request.decision.overrule and event.error_code == ErrorCode.PAYMENTS_JOINED:
        # A person has looked: it is about the payment of its own name, and joins nothing.
        said = replace(said, aliases=())
    try:
        may_create = event.provider not in settings.INITIATED_PROVIDERS
        recorded = record(said, _source(event), may_create=may_create)
    except (PaymentUnknown, JoinsPayments) as error:
        return finish(event, request, judging.judge_unrecorded(error))
    dismissed = any(_says_no(row) for row in siblings)
    settlement = settle(recorded, request.decision, dismissed=dismissed)
    write(*messages_of(settlement, event_id=event.pk, event_type=event.event_type))
    verdict = judging.judge(
        said, settlement, overruled=request.decision.overrule, siblings=siblings
    )
    return finish(event, request, doubt or verdict, settlement, siblings)


def _names(event: WebhookEvent, said: PaymentFact | NotAPayment | None) -> list[Name]:
    if isinstance(said, PaymentFact):
        return names_of(event.provider, said)
    payment_id = said.external_payment_id if said else event.external_payment_id
    return [Name(event.provider, payment_id)] if payment_id else []


def _lock(event: WebhookEvent, names: list[Name]) -> tuple[WebhookEvent, list[WebhookEvent]]:
    """The event, and those of the same payment that its outcome may settle or that a person
    dismissed: all event locks are taken first and by id, so that two events of one payment
    cannot wait for each other."""
    systems, ids = [name.system for name in names], [name.external_id for name in names]
    # By own name too: a release without aliases may have made the payment a moment ago.
    spoken_of = RawSQL(
        """
        SELECT %s::uuid UNION
        SELECT fact.event_id
        FROM unnest(%s::text[], %s::text[]) AS name (system, external_id)
        JOIN billing_paymentalias AS alias USING (system, external_id)
        JOIN billing_fact AS fact USING (payment_id)
        UNION
        SELECT fact.event_id
        FROM unnest(%s::text[], %s::text[]) AS name (provider, external_payment_id)
        JOIN billing_payment AS payment USING (provider, external_payment_id)
        JOIN billing_fact AS fact ON fact.payment_id = payment.id
        """,
        [event.pk, *2 * (systems, ids)],
    )
    wanted = Q(pk=event.pk) | (
        (_OPEN | Q(review=ReviewState.DISMISSED)) & Q(conflict_of__isnull=True)
    )
    locked = list(
        WebhookEvent.objects.filter(wanted, pk__in=spoken_of)
        .annotate(age=Now() - F("received_at"))
        .defer("payload", "raw_body", "headers")
        .order_by("pk")
        .select_for_update(no_key=True)
    )
    (own,) = (row for row in locked if row.pk == event.pk)
    return own, [row for row in locked if row is not own]


def _says_no(event: WebhookEvent) -> bool:
    """That a person looked at a cancel and left it says nothing against the payment."""
    return (
        event.review == ReviewState.DISMISSED
        and event.status == EventStatus.FAILED_FINAL
        and event.error_code != ErrorCode.CANCEL_UNCONFIRMED
    )


def _may_run(event: WebhookEvent, request: Request) -> bool:
    """That a row exists never means "done": its status does."""
    if event.signature_valid is not True or event.review == ReviewState.DISMISSED:
        return False
    if event.conflict_of_id and event.review != ReviewState.RESOLVED:
        # Until a person believes it.
        return request.decision.overrule
    if event.status in OPEN_STATUSES:
        return True
    if request.decision.about_what_was_given:
        return event.review == ReviewState.OPEN
    if event.status == EventStatus.FAILED_FINAL:
        # Who waited too long still gets what was paid for, once the user or the order appears.
        return request.actor.is_person or request.reopens or event.error_code in WAITING
    # Say, after a provider's file was mended.
    return request.actor.is_person and event.status == EventStatus.IGNORED


def _counts(said: PaymentFact | NotAPayment) -> bool:
    return isinstance(said, PaymentFact) and (said.live or settings.ACCEPT_TEST_PAYMENTS)


def _source(event: WebhookEvent) -> Source:
    return Source(event.provider, event.pk, event.event_key, event.received_at)


def _read_again(event: WebhookEvent) -> PaymentFact | NotAPayment:
    kept = archive.read(event)
    return provider_of(event.provider).parse(Delivery(body=kept.raw_body, headers=kept.headers))
