"""Guards taken away, for the tests that show what each of them prevents."""

from __future__ import annotations

from typing import Any

from django.db import connection

from webhooks import inbox
from webhooks.audit import Action
from webhooks.models import WebhookEvent

VARIABLE = "TOLLGATE_FAULT"
LOOK_THEN_INSERT = "look_then_insert"


def break_on_purpose(fault: str) -> None:
    if fault != LOOK_THEN_INSERT:
        raise ValueError(fault)
    inbox._insert_or_find = _look_then_insert


def _look_then_insert(values: dict[str, Any]) -> tuple[WebhookEvent, str]:
    """What one writes at first: look whether it is there, and insert it if not."""
    known = WebhookEvent.objects.filter(external_event_id=values["external_event_id"]).first()
    if known is not None:
        return known, Action.EVENT_DEDUPED
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(0.3)")
        cursor.execute(inbox._insert_sql(""), values)
    return WebhookEvent.objects.get(pk=values["id"]), Action.EVENT_INSERTED
