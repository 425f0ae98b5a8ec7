"""manage.py archive_events, and everything that reads what it put away."""

from __future__ import annotations

import base64
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError
from django.test import Client
from django.urls import reverse

from billing.facts import FactKind
from billing.models import Grant, Payment
from subscriptions.models import Plan, User
from tests.factories import StaffFactory
from tests.looking import contents, effects
from tests.people import ANNA
from tests.sending import deliver, paid, result, send, to_bytes
from webhooks import archive as archives
from webhooks import review
from webhooks.leases import lease
from webhooks.models import AuditEntry, WebhookEvent
from webhooks.providers import provider_of, tilda
from webhooks.providers.base import Delivery
from webhooks.tests.archiving import archive, data_files, documents, manifest_of, old_event

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def folder(settings: Any, tmp_path: Path) -> Path:
    settings.ARCHIVE_DIR = tmp_path / "archive"
    return tmp_path / "archive"


def test_it_moves_what_an_old_event_brought_into_a_file(
    buyer: User, monthly: Plan, folder: Path
) -> None:
    event = old_event()
    body, payload, headers = bytes(event.raw_body or b""), event.payload, event.headers

    assert "1 event(s) archived" in archive("--older-than", "90d")

    (path,) = data_files(folder)
    (line,) = documents(folder)
    assert (line["id"], line["payload_hash"]) == (str(event.pk), event.payload_hash)
    assert (base64.b64decode(line["raw_body"]), line["payload"]) == (body, payload)
    assert line["headers"] == headers
    assert headers
    manifest = manifest_of(path)
    assert (manifest["format"], manifest["file"], manifest["events"]) == (1, path.name, 1)
    assert manifest["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert manifest["first_received_at"] == event.received_at.isoformat()
    event.refresh_from_db()
    assert (event.raw_body, event.payload, event.headers) == (None, None, {})
    assert (event.archived_in, event.status) == (path.name, "PROCESSED")
    entry = AuditEntry.objects.get(action="events_archived")
    assert entry.details == {"file": path.name, "events": 1}


def test_nobody_else_on_the_machine_can_read_it(buyer: User, monthly: Plan, folder: Path) -> None:
    old_event()

    archive()

    modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}
    assert (modes, folder.stat().st_mode & 0o777) == ({0o600}, 0o700)


def test_a_duplicate_years_later_is_still_a_duplicate(buyer: User, monthly: Plan) -> None:
    known = paid(event_id="known")
    nameless = {**paid(), "event_id": None}
    for payload in (known, nameless):
        assert result(deliver(payload)) == (200, "processed")
    WebhookEvent.objects.update(received_at="2020-01-01T00:00:00Z")
    assert "2 event(s) archived" in archive()
    before = effects()

    assert result(deliver(known)) == (200, "duplicate")
    assert result(deliver(nameless)) == (200, "duplicate")

    assert effects() == before
    assert sorted(WebhookEvent.objects.values_list("deliveries", flat=True)) == [2, 2]


def test_the_same_id_with_other_money_is_still_a_conflict(buyer: User, monthly: Plan) -> None:
    event = old_event(event_id="known")
    archive()

    assert result(deliver(paid(event_id="known", amount="1.00"))) == (409, "conflict")

    assert WebhookEvent.objects.get(conflict_of=event).review == "OPEN"


def test_what_is_not_finished_stays(monthly: Plan, buyer: User, folder: Path) -> None:
    parked = old_event(email="nobody@example.com")
    in_review = old_event(amount="1")
    first = old_event(event_id="told-twice")
    deliver(paid(event_id="told-twice", amount="2"))
    send(to_bytes(paid()), {"X-Webhook-Signature": "0" * 64})
    WebhookEvent.objects.update(received_at="2020-01-01T00:00:00Z")
    assert WebhookEvent.objects.count() == 5
    assert {parked.status, in_review.review} == {"FAILED_RETRYABLE", "OPEN"}
    # Also once it is decided: people may want to compare the two.
    review.dismiss(WebhookEvent.objects.get(conflict_of=first), ANNA, "their mistake")

    archive()

    assert [line["id"] for line in documents(folder)] == [str(first.pk)]
    assert WebhookEvent.objects.get(archived_in__isnull=False) == first


def test_what_a_person_dismissed_is_finished(monthly: Plan, buyer: User) -> None:
    event = old_event(amount="1")
    review.dismiss(event, ANNA, "a test of theirs")

    archive()

    event.refresh_from_db()
    assert event.archived_in is not None
    review.reopen(event, ANNA, "it was none")
    event.refresh_from_db()
    review.apply_anyway(event, ANNA, "they were promised this price")
    assert Grant.objects.count() == 1


def test_younger_events_stay(monthly: Plan, buyer: User, folder: Path) -> None:
    old_event(event_id="young", days=6.9)
    old_event(event_id="old", days=7.1)

    archive("--older-than", "1w")

    assert [line["payload"]["event_id"] for line in documents(folder)] == ["old"]


def test_files_are_small_oldest_first_and_as_many_as_asked_for(
    monthly: Plan, buyer: User, folder: Path
) -> None:
    for number in (3, 1, 5, 2, 4):
        old_event(event_id=f"e{number}", days=100 - number)

    archive("--batch-size", 2, "--limit", 3)

    assert [manifest_of(path)["events"] for path in data_files(folder)] == [2, 1]
    assert [line["payload"]["event_id"] for line in documents(folder)] == ["e1", "e2", "e3"]
    archive("--batch-size", 2)
    assert WebhookEvent.objects.filter(archived_in__isnull=True).count() == 0
    assert len(documents(folder)) == 5


def test_pages_of_rows_do_not_lose_or_repeat_any(
    monthly: Plan, buyer: User, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("webhooks.archive.writing.PAGE", 2)
    monkeypatch.setattr("webhooks.archive.clearing.BATCH", 2)
    events = [old_event() for _ in range(7)]
    # Some came in at the same moment.
    WebhookEvent.objects.filter(pk__in=[e.pk for e in events[2:5]]).update(
        received_at=events[2].received_at
    )

    archive("--batch-size", 3)

    assert sorted(line["id"] for line in documents(folder)) == sorted(str(e.pk) for e in events)
    assert WebhookEvent.objects.filter(archived_in__isnull=True).count() == 0
    counts = AuditEntry.objects.filter(action="events_archived").values_list("details", flat=True)
    assert sum(details["events"] for details in counts) == 7


def test_a_dry_run_changes_nothing(monthly: Plan, buyer: User, folder: Path) -> None:
    event = old_event()
    before = contents()

    told = archive("--dry-run")

    assert f"1 event(s), {len(bytes(event.raw_body or b''))} bytes" in told
    assert (contents(), folder.exists()) == (before, False)


@pytest.mark.parametrize("age", ["90", "d", "-1d", "1y", "0d", "9999999d", "99999w", "1.5d", "٣d"])
def test_it_refuses_what_is_no_age(age: str, db: None) -> None:
    with pytest.raises(CommandError):
        archive(f"--older-than={age}")


def test_less_than_a_day_takes_force(monthly: Plan, buyer: User, folder: Path) -> None:
    old_event(days=0.5)

    with pytest.raises(CommandError, match="less than a day"):
        archive("--older-than", "3h")
    assert not folder.exists()
    archive("--older-than", "3h", "--force")

    assert len(documents(folder)) == 1


def test_of_two_archivers_one_wins(monthly: Plan, buyer: User, folder: Path) -> None:
    event = old_event()

    with lease("archive", seconds=60), pytest.raises(CommandError, match="somebody else"):
        archive()
    event.refresh_from_db()
    assert event.raw_body is not None
    archive()

    assert len(documents(folder)) == 1


def test_an_archived_event_is_processed_again(
    monthly: Plan, buyer: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as mistaken:
        mistaken.setitem(tilda.KIND_BY_STATUS, "paid", FactKind.PENDING)
        event = old_event()
    assert event.status == "IGNORED"
    archive()

    review.reprocess(event, ANNA, "the mapping was mended")

    event.refresh_from_db()
    assert (event.status, Grant.objects.count()) == ("PROCESSED", 1)
    assert event.archived_in is not None


def test_its_signature_can_be_verified_again(monthly: Plan, buyer: User) -> None:
    event = old_event()
    proof = (event.signature_method, event.key_id)
    archive()

    kept = archives.read(event)

    again = provider_of("tilda").verify(Delivery(body=kept.raw_body, headers=kept.headers))
    assert (again.method, again.key_id) == proof


def test_an_event_that_is_not_archived_is_read_from_its_row(monthly: Plan, buyer: User) -> None:
    event = old_event()

    kept = archives.read(event)

    assert json.loads(kept.raw_body) == kept.payload == event.payload


def _page(event: WebhookEvent) -> str:
    client = Client()
    client.force_login(StaffFactory.create())
    url = reverse("admin:webhooks_webhookevent_change", args=[event.pk])
    return str(client.get(url, secure=True).content.decode())


def test_the_back_office_shows_it_from_the_archive(
    monthly: Plan, buyer: User, folder: Path
) -> None:
    event = old_event(event_id="shown")
    shown_before = _page(event)
    archive()

    page = _page(event)

    assert "x-webhook-signature" in shown_before
    for text in ("&quot;shown&quot;", "x-webhook-signature", data_files(folder)[0].name):
        assert text in page


def test_the_back_office_says_why_it_cannot_show_it(
    monthly: Plan, buyer: User, folder: Path
) -> None:
    event = old_event(event_id="shown")
    archive()
    (path,) = data_files(folder)
    path.unlink()

    page = _page(event)

    assert f"{path.name} is not in" in page
    assert Payment.objects.get().status == "SUCCEEDED"
