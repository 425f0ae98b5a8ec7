"""A user who appears, or gets another e-mail, gets what was paid under it: at once."""

from __future__ import annotations

import structlog

from billing.codes import WAITING
from billing.linking import payments_waiting_for
from subscriptions.models import User
from webhooks import metrics
from webhooks.audit import BY_LINKING
from webhooks.logbook import Line
from webhooks.models import WebhookEvent
from webhooks.process import process

logger = structlog.get_logger("webhooks")

# More than a few are left to recovery, so that signing up never takes long.
AT_ONCE = 20


def link_waiting_payments(user: User) -> int:
    """Process the events that wait for this user's e-mail; return how many were applied."""
    applied = 0
    for payment in payments_waiting_for(user.email).order_by("pk")[:AT_ONCE]:
        event = (
            WebhookEvent.objects.filter(
                provider=payment.provider,
                external_payment_id=payment.external_payment_id,
                error_code__in=WAITING,
                signature_valid=True,
            )
            .defer("payload", "raw_body", "headers")
            .order_by("pk")
            .first()
        )
        if event is None:
            continue
        line = Line(provider=event.provider, event=event)
        outcome = line.outcome = process(event, request=BY_LINKING)
        metrics.count(outcome, by_recovery=True)
        line.write()
        applied += outcome.change.applied_now
    return applied
