"""A sample of what did not prove itself, for people to look at. It can never grow beyond its cap,
and never stands in a genuine event's way."""

from __future__ import annotations

import hashlib
import random
from dataclasses import replace
from datetime import timedelta

from django.conf import settings
from django.db.models.functions import Now

from billing.codes import ErrorCode
from billing.facts import NotAPayment, PaymentFact
from webhooks.inbox import event_values, insert
from webhooks.models import EventStatus, WebhookEvent
from webhooks.providers.base import Delivery, Provider

MAX_SAMPLE_BYTES = 16 * 1024


def keep_sample(
    provider: Provider,
    delivery: Delivery,
    code: ErrorCode,
    said: PaymentFact | NotAPayment,
    *,
    source_ip: str | None,
) -> None:
    """Keep a sample, outside the unique keys of genuine events.

    The sample is a fixed number of slots, each source may use only some of them, and a taken
    slot stays taken until it is pruned: however large a flood is, the table does not grow.
    """
    sample = replace(delivery, body=delivery.body[:MAX_SAMPLE_BYTES])
    values = event_values(provider, sample, said) | {
        "signature_valid": False,
        "status": EventStatus.FAILED_FINAL,
        "next_attempt_in_s": None,
        "attempts": 0,
        "error_code": code,
        "error_message": "did not prove itself",
        "source_ip": source_ip,
        "forged_slot": _slot(source_ip),
    }
    insert("ON CONFLICT (forged_slot) DO NOTHING RETURNING id", values)


def prune() -> int:
    """Forget samples of forged requests that are older than the setting says."""
    too_old = Now() - timedelta(days=settings.WEBHOOK_FORGED_DAYS_KEPT)
    deleted, _ = WebhookEvent.objects.filter(
        forged_slot__isnull=False, received_at__lt=too_old
    ).delete()
    return deleted


def _slot(source_ip: str | None) -> int:
    """One of the few slots that this source's forged requests compete for."""
    total = max(settings.WEBHOOK_FORGED_ROWS_KEPT, 1)
    digest = hashlib.sha256((source_ip or "").encode()).digest()
    first = int.from_bytes(digest[:8]) % total
    mine = random.randrange(max(settings.WEBHOOK_FORGED_ROWS_PER_SOURCE, 1))  # noqa: S311
    return (first + mine) % total
