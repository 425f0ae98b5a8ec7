"""What a person does about messages that got stuck, on their way out or in: with an audit row."""

from __future__ import annotations

from typing import Any

from django.db.models.functions import Now

from billing.models import DeliveryStatus, OutboxDelivery, Payment, PoisonMessage
from billing.outbox.incoming import Poison, accept
from billing.outbox.waking import wake
from webhooks import audit
from webhooks.audit import Action, Actor
from webhooks.review import CannotDecide
from webhooks.transactions import short_transaction


def resend(delivery: OutboxDelivery, actor: Actor, reason: str) -> None:
    """Its attempts begin anew. What waited behind it follows, in order."""
    _move(
        delivery,
        {"status": DeliveryStatus.PENDING, "attempts": 0, "next_attempt_at": Now()},
        action=Action.MESSAGE_RESENT,
        actor=actor,
        reason=reason,
    )


def skip(delivery: OutboxDelivery, actor: Actor, reason: str) -> None:
    """The target never hears of it, and what waited behind it goes."""
    _move(
        delivery,
        {"status": DeliveryStatus.SKIPPED, "next_attempt_at": None},
        action=Action.MESSAGE_SKIPPED,
        actor=actor,
        reason=reason,
    )


def _move(
    delivery: OutboxDelivery,
    moved: dict[str, Any],
    *,
    action: Action,
    actor: Actor,
    reason: str,
) -> None:
    _require(reason)
    with short_transaction():
        dead = OutboxDelivery.objects.filter(pk=delivery.pk, status=DeliveryStatus.DEAD)
        if dead.update(**moved) != 1:
            raise CannotDecide("Only a dead letter can be resent or skipped.")
        payment = Payment.objects.filter(pk=delivery.key).first()
        details = {
            "message_id": str(delivery.message_id),
            "key": str(delivery.key),
            "target": delivery.target,
            "seq": delivery.seq,
        }
        # A message may be about a subscription, without any payment.
        payment_id = payment and payment.pk
        audit.write(
            audit.entry(action, actor, reason=reason, payment_id=payment_id, details=details)
        )
    wake()


def retry(poison: PoisonMessage, actor: Actor, reason: str) -> None:
    """Take it as if it came now: what was missing (a user, a wallet) may be there."""
    _require(reason)
    try:
        with short_transaction():
            _close(poison, "RESOLVED")
            taken = accept(bytes(poison.body))
            _audit(poison, Action.POISON_RETRIED, actor, reason, result=str(taken))
    except Poison as refusal:
        raise CannotDecide(f"It still cannot be taken: {refusal}") from refusal


def dismiss(poison: PoisonMessage, actor: Actor, reason: str) -> None:
    """No payment is started."""
    _require(reason)
    with short_transaction():
        _close(poison, "DISMISSED")
        _audit(poison, Action.POISON_DISMISSED, actor, reason)


def _close(poison: PoisonMessage, review: str) -> None:
    if PoisonMessage.objects.filter(pk=poison.pk, review="OPEN").update(review=review) != 1:
        raise CannotDecide("This message is not open any more.")


def _audit(
    poison: PoisonMessage, action: Action, actor: Actor, reason: str, **details: str
) -> None:
    about = {"source": poison.source, "position": poison.position, **details}
    audit.write(audit.entry(action, actor, reason=reason, details=about))


def _require(reason: str) -> None:
    if not reason.strip():
        raise CannotDecide("A reason is required.")
