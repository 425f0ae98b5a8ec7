"""What a person decides that needs no walk: the payment stays as it is, and is remembered so."""

from __future__ import annotations

from decimal import Decimal
from uuid import UUID

from django.db.models import F, QuerySet
from django.db.models.functions import Greatest

from billing.models import Fact, Grant, Payment
from billing.outbox.messages import write
from billing.purchases import spendings
from billing.telling import reservation_released


def keep_despite_refund(event_id: UUID) -> None:
    """What was refunded so far of the payment this event is about is let be: shortening for a later
    refund must not count it."""
    for payment in _locked_payments_of(event_id):
        Grant.objects.filter(payment=payment).update(
            kept_for=Greatest(Decimal(0), payment.amount_refunded - F("shortened_for"))
        )


def let_go_of_reservations(event_id: UUID) -> list[Payment]:
    """The payment this event is about gives nothing: a wallet's money must not be held for it for
    ever. Returns the payments whose money was let go."""
    let_go = [
        payment
        for payment in _locked_payments_of(event_id)
        if payment.subscription_applied_at is None and spendings.let_go(payment)
    ]
    write(*(reservation_released(payment, cause=event_id) for payment in let_go))
    return let_go


def _locked_payments_of(event_id: UUID) -> QuerySet[Payment]:
    spoken_of = Fact.objects.filter(event_id=event_id).values("payment_id")
    return Payment.objects.filter(pk__in=spoken_of).order_by("pk").select_for_update()
