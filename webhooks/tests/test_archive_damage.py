"""Files that were cut off, changed, lost or left behind: nothing is cleared that is not whole."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError

from subscriptions.models import Plan, User
from tests.looking import contents
from tests.people import ANNA
from webhooks import archive as archives
from webhooks import review
from webhooks.archive import clearing, files, writing
from webhooks.models import WebhookEvent
from webhooks.tests.archiving import archive, data_files, documents, old_event, run_command

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def folder(settings: Any, tmp_path: Path) -> Path:
    settings.ARCHIVE_DIR = tmp_path / "archive"
    return tmp_path / "archive"


@pytest.fixture
def events(buyer: User, monthly: Plan) -> list[WebhookEvent]:
    return [old_event(days=100 - number) for number in range(3)]


@pytest.fixture
def archived(events: list[WebhookEvent], folder: Path) -> Path:
    archive()
    (path,) = data_files(folder)
    return path


def _uncleared() -> int:
    return WebhookEvent.objects.filter(archived_in__isnull=True, raw_body__isnull=False).count()


def _flip_a_bit(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def _change_a_body(data: bytes) -> bytes:
    """Well packed, well formed, and not what came in."""
    return gzip.compress(gzip.decompress(data).replace(b'"raw_body":"ey', b'"raw_body":"eX', 1))


DAMAGES = [lambda data: data[:-20], _flip_a_bit, _change_a_body, lambda _data: b"", lambda _: b"x"]


@pytest.mark.parametrize("damage", DAMAGES[:3])
def test_nothing_is_cleared_when_the_file_does_not_read_back(
    events: list[WebhookEvent], monkeypatch: pytest.MonkeyPatch, damage: Any
) -> None:
    write = files.write_lines

    def write_badly(name: str, lines: Any) -> Path:
        path = write(name, lines)
        path.write_bytes(damage(path.read_bytes()))
        return path

    monkeypatch.setattr(files, "write_lines", write_badly)

    with pytest.raises(CommandError, match="ArchiveDamaged"):
        archive()

    assert _uncleared() == 3


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_said_to_be_damaged_and_nothing_changes(
    archived: Path, events: list[WebhookEvent], damage: Any
) -> None:
    archived.write_bytes(damage(archived.read_bytes()))

    with pytest.raises(archives.ArchiveDamaged):
        archives.read(events[0])
    with pytest.raises(CommandError, match="problem"):
        run_command("verify_archive")


def test_a_whole_file_with_another_body_is_not_believed(
    archived: Path, events: list[WebhookEvent]
) -> None:
    first, second, _third = files.lines_of(archived)
    forged = replace(second, id=first.id)
    files.rename(files.write_lines(archived.name, [forged]), archived)

    with pytest.raises(archives.ArchiveDamaged, match="other bytes than came in"):
        archives.read(events[0])
    with pytest.raises(archives.ArchiveDamaged, match="does not hold"):
        archives.read(events[1])


def test_an_event_whose_bytes_do_not_match_stays_and_is_named(
    events: list[WebhookEvent], folder: Path
) -> None:
    odd = events[1]
    WebhookEvent.objects.filter(pk=odd.pk).update(raw_body=b"something else")

    with pytest.raises(CommandError, match=str(odd.pk)):
        archive()

    assert len(documents(folder)) == 2
    assert WebhookEvent.objects.get(archived_in__isnull=True) == odd


def test_a_reprocess_whose_file_is_lost_fails_clearly_and_loses_nothing(
    buyer: User, monthly: Plan, folder: Path
) -> None:
    event = old_event(status="failed")
    archive()
    (path,) = data_files(folder)
    away = path.rename(path.with_name("away"))
    before = contents()

    outcome = review.reprocess(event, ANNA, "")

    assert outcome.result == "failed_retryable"
    assert (outcome.message or "").startswith("ArchiveMissing: ")
    with pytest.raises(CommandError, match="1 of 1 failed"):
        run_command("reprocess_webhooks", event.pk)
    assert contents() == before
    with pytest.raises(archives.ArchiveMissing, match=path.name):
        archives.read(event)
    away.rename(path)
    assert review.reprocess(event, ANNA, "").result == "ignored"


def test_it_removes_what_a_killed_writer_left(events: list[WebhookEvent], folder: Path) -> None:
    folder.mkdir()
    (folder / "events-1.jsonl.gz.tmp").write_bytes(b"half")

    archive()

    assert not list(folder.glob("*.tmp"))
    assert len(documents(folder)) == 3


def test_a_file_whose_events_were_not_cleared_is_used_not_written_again(
    events: list[WebhookEvent], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_args: Any, **_kwargs: Any) -> int:
        raise OSError("killed")

    with monkeypatch.context() as broken:
        broken.setattr(writing, "complete", die)
        with pytest.raises(CommandError, match="killed"):
            archive()
    left = data_files(folder)
    assert (len(left), _uncleared()) == (1, 3)

    archive()

    assert (data_files(folder), _uncleared()) == (left, 0)
    assert "0 problem(s)" in run_command("verify_archive")


def test_an_event_that_was_opened_again_meanwhile_leaves_the_file(
    events: list[WebhookEvent], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = clearing.complete

    def open_again_first(name: str, **kwargs: Any) -> int:
        WebhookEvent.objects.filter(pk=events[1].pk).update(review="OPEN")
        return complete(name, **kwargs)

    monkeypatch.setattr(writing, "complete", open_again_first)

    archive()

    assert [line["id"] for line in documents(folder)] == [str(events[0].pk), str(events[2].pk)]
    assert WebhookEvent.objects.get(archived_in__isnull=True) == events[1]
    assert "0 problem(s)" in run_command("verify_archive")


def test_a_file_without_events_goes(
    events: list[WebhookEvent], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete = clearing.complete

    def open_again_first(name: str, **kwargs: Any) -> int:
        WebhookEvent.objects.update(review="OPEN")
        return complete(name, **kwargs)

    monkeypatch.setattr(writing, "complete", open_again_first)

    archive()

    assert (_uncleared(), list(folder.iterdir())) == (3, [])


def test_a_writer_that_was_stopped_too_long_clears_nothing_into_a_changed_file(
    events: list[WebhookEvent], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It verified the file, slept through its lease, and meanwhile another one took a line out."""
    clear = clearing._clear

    def sleep_first(name: str, *args: Any) -> int:
        path = files.path_of(name)
        kept = [line for line in files.lines_of(path) if line.id != events[1].pk]
        files.rename(files.write_lines(name, kept), path)
        return clear(name, *args)

    monkeypatch.setattr(clearing, "_clear", sleep_first)

    with pytest.raises(CommandError, match="changed by somebody else"):
        archive()

    assert _uncleared() == 3


def test_a_line_that_a_row_needs_cannot_be_taken_out(
    archived: Path, events: list[WebhookEvent]
) -> None:
    before = archived.read_bytes()

    with pytest.raises(archives.ArchiveDamaged, match="would lose"):
        clearing.rewrite(archived.name, lambda line: None if line.id == events[0].pk else line)

    assert archived.read_bytes() == before


def test_verify_finds_a_lost_file_and_a_lost_row(
    archived: Path, events: list[WebhookEvent]
) -> None:
    assert "1 file(s) read, 0 problem(s)" in run_command("verify_archive")
    WebhookEvent.objects.filter(pk=events[0].pk).update(archived_in=None)
    with pytest.raises(CommandError, match=r"1 problem\(s\)"):
        run_command("verify_archive")
    archived.unlink()

    with pytest.raises(CommandError, match=r"1 problem\(s\)"):
        run_command("verify_archive")


def test_an_archiver_does_not_take_a_lost_file_for_an_empty_one(
    archived: Path, events: list[WebhookEvent]
) -> None:
    manifest = files.beside(archived.name, files.MANIFEST)
    manifest.rename(files.beside(archived.name, files.PENDING))
    archived.unlink()

    with pytest.raises(CommandError, match="ArchiveMissing"):
        archive()

    assert files.beside(archived.name, files.PENDING).exists()


@pytest.mark.parametrize("name", ["../events.jsonl.gz", "/etc/passwd", "a/b"])
def test_a_name_leads_nowhere_else(archived: Path, events: list[WebhookEvent], name: str) -> None:
    WebhookEvent.objects.filter(pk=events[0].pk).update(archived_in=name)

    with pytest.raises(archives.ArchiveMissing):
        archives.read(events[0])
