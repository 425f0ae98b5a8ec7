"""The archiver beside people and providers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError
from django.db import transaction

from subscriptions.models import Plan, User
from tests.faults.threads import Meeting, at_once
from tests.sending import deliver, result
from webhooks.archive import clearing, writing
from webhooks.models import WebhookEvent
from webhooks.tests.archiving import archive, documents, old_event, run_command

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def folder(settings: Any, tmp_path: Path) -> Path:
    settings.ARCHIVE_DIR = tmp_path / "archive"
    return tmp_path / "archive"


def test_an_event_that_is_being_opened_again_is_not_cleared(
    buyer: User, monthly: Plan, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The archiver's file is written; it waits for the person's lock, and then sees the change."""
    opened, other = old_event(status="failed"), old_event(status="failed")
    meeting = Meeting(2)
    complete = clearing.complete

    def once_the_person_has_the_lock(name: str, **kwargs: Any) -> int:
        meeting.wait()
        return complete(name, **kwargs)

    def open_again() -> None:
        with transaction.atomic():
            WebhookEvent.objects.filter(pk=opened.pk).update(review="OPEN")
            meeting.wait()
            # The archiver is on its way; it gets stuck at our lock.
            Meeting(2).wait()

    monkeypatch.setattr(writing, "complete", once_the_person_has_the_lock)

    at_once(open_again, archive)

    opened.refresh_from_db()
    assert (opened.review, opened.archived_in) == ("OPEN", None)
    assert opened.raw_body is not None
    assert [line["id"] for line in documents(folder)] == [str(other.pk)]
    assert "0 problem(s)" in run_command("verify_archive")


def test_archivers_at_once_archive_everything_once(
    buyer: User, monthly: Plan, folder: Path
) -> None:
    events = [old_event(status="failed") for _ in range(20)]

    def run() -> str:
        return archive("--batch-size", 3)

    told = at_once(*[run] * 3, expected=CommandError)

    assert sum("archived" in str(answer) for answer in told) >= 1
    assert all("somebody else" in str(a) for a in told if isinstance(a, CommandError))
    assert sorted(line["id"] for line in documents(folder)) == sorted(str(e.pk) for e in events)
    assert "0 problem(s)" in run_command("verify_archive")


def test_a_redelivery_beside_the_archiver_is_a_duplicate(
    buyer: User, monthly: Plan, folder: Path
) -> None:
    payloads = [old_event(status="failed").payload for _ in range(10)]

    _told, *answers = at_once(archive, *[lambda p=p: deliver(p) for p in payloads[-3:]])

    assert [result(answer) for answer in answers] == [(200, "duplicate")] * 3
    assert len(documents(folder)) == 10
    assert WebhookEvent.objects.filter(archived_in__isnull=True).count() == 0
