"""Real inserts that PostgreSQL must refuse."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from django.apps import apps
from django.db import connection
from django.db.models import CheckConstraint, UniqueConstraint
from django.utils import timezone

from tests.looking import OUR_APPS
from tests.refusing import constraints, definition, refused
from webhooks.models import AuditEntry, WebhookEvent

pytestmark = pytest.mark.django_db
APPEND_ONLY = "23001"  # restrict_violation, raised by the trigger


def _event(**fields: Any) -> WebhookEvent:
    return WebhookEvent.objects.create(
        **{
            "provider": "tilda",
            "payload_hash": uuid4().hex,
            "raw_body": b"",
            "signature_valid": True,
            "status": "PROCESSED",
            **fields,
        }
    )


@pytest.mark.parametrize("proven", [True, None])
def test_an_event_is_known_by_its_id(proven: bool | None) -> None:
    _event(external_event_id="e")
    _event(external_event_id="E")
    _event(external_event_id="e", provider="other")
    with refused("event_unique_by_event_id"):
        _event(external_event_id="e", signature_valid=proven)


@pytest.mark.parametrize("proven", [True, None])
def test_an_event_without_an_id_is_known_by_its_bytes(proven: bool | None) -> None:
    _event(payload_hash="h")
    _event(payload_hash="h", provider="other")
    _event(payload_hash="h", external_event_id="e")
    _event(payload_hash="h", external_event_id="f")
    with refused("event_unique_by_payload"):
        _event(payload_hash="h", signature_valid=proven)


def test_forged_rows_and_conflicts_take_nobodys_place() -> None:
    first = _event(external_event_id="e", payload_hash="h")
    for _ in range(2):
        _event(
            external_event_id="e",
            payload_hash="h",
            signature_valid=False,
            status="FAILED_FINAL",
        )
    _event(external_event_id="e", payload_hash="other", conflict_of=first)
    _event(payload_hash="h", signature_valid=False, status="FAILED_FINAL")
    assert WebhookEvent.objects.count() == 5


def test_a_conflict_is_kept_once() -> None:
    first, second = _event(), _event()
    _event(conflict_of=first, payload_hash="h")
    _event(conflict_of=first, payload_hash="i")
    _event(conflict_of=second, payload_hash="h")
    with refused("event_conflict_kept_once"):
        _event(conflict_of=first, payload_hash="h")


def test_a_status_is_a_known_one() -> None:
    for status in ("PROCESSED", "IGNORED", "FAILED_FINAL"):
        _event(status=status)
    for status in ("", "DONE", "processed"):
        with refused("event_status_known"):
            _event(status=status)


def test_a_review_state_is_a_known_one() -> None:
    for review in (None, "OPEN", "RESOLVED", "DISMISSED"):
        _event(review=review)
    with refused("event_review_known"):
        _event(review="")


@pytest.mark.parametrize("name", ["external_event_id", "external_payment_id", "merchant_uid"])
def test_an_id_is_null_but_never_blank(name: str) -> None:
    _event(**{name: None})
    with refused("event_ids_never_blank"):
        _event(**{name: ""})


@pytest.mark.parametrize("status", ["RECEIVED", "VALIDATED", "FAILED_RETRYABLE"])
def test_nothing_waits_without_a_time(status: str) -> None:
    _event(status=status, next_attempt_at=timezone.now())
    with refused("event_open_is_due_some_day"):
        _event(status=status)


@pytest.mark.parametrize(
    "status", ["RECEIVED", "VALIDATED", "FAILED_RETRYABLE", "PROCESSED", "IGNORED"]
)
def test_what_is_forged_is_final(status: str) -> None:
    with refused("event_forged_is_final"):
        _event(signature_valid=False, status=status, next_attempt_at=timezone.now())
    _event(signature_valid=None, status=status, next_attempt_at=timezone.now())


def test_each_forged_sample_has_a_slot_of_its_own() -> None:
    forged = {"signature_valid": False, "status": "FAILED_FINAL"}
    _event(**forged, forged_slot=1)
    _event(**forged, forged_slot=2)
    _event(forged_slot=None)
    _event(forged_slot=None)
    with refused("webhooks_webhookevent_forged_slot_key"):
        _event(**forged, forged_slot=1)


def test_the_audit_is_append_only() -> None:
    entry = AuditEntry.objects.create(action="payment_applied", actor="somebody")
    with refused(APPEND_ONLY):
        AuditEntry.objects.update(actor="nobody")
    with refused(APPEND_ONLY):
        entry.delete()
    entry.refresh_from_db()
    assert entry.actor == "somebody"
    assert entry.txid > 0


def test_the_audit_has_no_foreign_keys_that_a_deletion_would_touch() -> None:
    with connection.cursor() as cursor:
        found = connection.introspection.get_relations(cursor, AuditEntry._meta.db_table)
    assert found == {}


@pytest.mark.parametrize(
    ("index", "parts"),
    [
        ("event_external_payment_id", ["(external_payment_id)"]),
        ("event_merchant_uid", ["(merchant_uid)", "WHERE (merchant_uid IS NOT NULL)"]),
        ("event_received_at", ["(received_at)"]),
        ("event_status_received_at", ["(status, received_at)"]),
        ("event_due", ["(next_attempt_at)", "RECEIVED", "VALIDATED", "FAILED_RETRYABLE"]),
        ("event_review", ["(received_at)", "'OPEN'"]),
        ("event_unique_by_event_id", ["UNIQUE", "(provider, external_event_id)", "conflict_of_id"]),
        ("event_unique_by_payload", ["UNIQUE", "(provider, payload_hash)", "signature_valid"]),
    ],
)
def test_what_is_looked_for_is_indexed(index: str, parts: list[str]) -> None:
    for part in parts:
        assert part in definition(index)


def test_what_is_due_is_found_by_its_index() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(
            "EXPLAIN SELECT id FROM webhooks_webhookevent"
            " WHERE status IN ('RECEIVED', 'VALIDATED', 'FAILED_RETRYABLE')"
            " AND next_attempt_at <= now() ORDER BY next_attempt_at LIMIT 100"
        )
        plan = "\n".join(row[0] for row in cursor.fetchall())
    assert "event_due" in plan
    assert "Sort" not in plan


def test_every_rule_of_the_models_is_a_rule_of_the_database() -> None:
    wanted = {
        constraint.name
        for app in OUR_APPS
        for model in apps.get_app_config(app).get_models()
        for constraint in model._meta.constraints
        if isinstance(constraint, CheckConstraint | UniqueConstraint)
    }
    assert len(wanted) > 20
    assert wanted <= constraints()
