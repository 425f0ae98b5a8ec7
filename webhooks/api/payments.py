"""Payments are started here; what became of them is read from the read model alone."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

from django.db import transaction
from rest_framework.request import Request
from rest_framework.response import Response

from billing.initiating import BadInitiation, initiate, learn_provider_txn_id, parse_initiation
from billing.models import Payment, PaymentStatus, PaymentView
from webhooks import audit, linking
from webhooks.api import showing
from webhooks.api.access import Rights
from webhooks.api.base import ApiView
from webhooks.api.idempotency import Answer
from webhooks.api.reading import Filters, chosen, moment, one_of, page, required_uuid, text
from webhooks.api.refusals import no_such
from webhooks.api.tokens import Scope
from webhooks.audit import Action, Actor
from webhooks.providers import all_providers
from webhooks.providers.fields import required_id

RIGHTS = Rights(
    read=Scope.PAYMENTS_READ, write=Scope.PAYMENTS_WRITE, view="billing.view_paymentview"
)
FILTERS: Filters = {
    "status": ("status", one_of(PaymentStatus.values)),
    "user": ("user_id", required_uuid),
    "provider": ("provider", text),
    "merchant_uid": ("merchant_uid", text),
    "created_from": ("created_at__gte", moment),
    "created_to": ("created_at__lt", moment),
}


class PaymentsView(ApiView):
    rights = RIGHTS

    def get(self, request: Request) -> Response:
        rows = PaymentView.objects.filter(**chosen(request.query_params, FILTERS))
        return self.show(lambda: page(request, rows, tie_breaker="pk", show=showing.payment_view))

    def post(self, request: Request) -> Response:
        return self.act(request, _initiate)


class PaymentDetailView(ApiView):
    rights = RIGHTS

    def get(self, request: Request, payment_id: str) -> Response:
        return self.show(lambda: _find(UUID(payment_id)))


class ProviderTxnView(ApiView):
    rights = RIGHTS

    def post(self, request: Request, payment_id: str) -> Response:
        return self.act(request, partial(_learn, UUID(payment_id)))


def _initiate(data: dict[str, Any], actor: Actor) -> Answer:
    initiation = parse_initiation(data)
    if initiation.provider not in all_providers():
        # Its callback, for which money may be held, could never come.
        raise BadInitiation("provider is not one that can call back here")
    payment, created = initiate(initiation)
    if created:
        entry = audit.entry(
            Action.PAYMENT_INITIATED,
            actor,
            payment_id=payment.pk,
            user_id=payment.user_id,
            details={"provider": payment.provider},
        )
        audit.write(entry)
    _after_commit_run_what_waited(payment)
    return Answer(201 if created else 200, showing.payment(payment))


def _learn(payment_id: UUID, data: dict[str, Any], actor: Actor) -> Answer:
    txn_id = required_id(data, "provider_txn_id")
    known = Payment.objects.filter(pk=payment_id, provider_txn_id=txn_id).exists()
    payment = learn_provider_txn_id(payment_id, txn_id)
    if not known:
        audit.write(audit.entry(Action.PAYMENT_NAMED, actor, payment_id=payment.pk))
    _after_commit_run_what_waited(payment)
    return Answer(200, showing.payment(payment))


def _after_commit_run_what_waited(payment: Payment) -> None:
    """Callbacks by the provider's name of it may have come before we knew that name. Also for a
    repeat: the first call may have died right after its commit."""
    if payment.provider_txn_id is not None:
        transaction.on_commit(lambda: linking.run_waiting_callbacks(payment), robust=True)


def _find(payment_id: UUID) -> dict[str, Any]:
    row = PaymentView.objects.filter(pk=payment_id).first()
    if row is None:
        raise no_such("payment")
    return showing.payment_view(row)
