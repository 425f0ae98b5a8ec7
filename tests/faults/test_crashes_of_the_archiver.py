"""kill -9 of whoever works on the archive, at every statement and every step on the disk; then
the same is run again."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from django.db.models.functions import Now
from django.test import override_settings

from billing.models import Fact, Payment
from subscriptions.models import Plan, Subscription, User
from tests.factories import UserFactory
from tests.faults import children
from tests.faults.kill_points import AFTER_COMMIT, BEFORE_COMMIT, KillPoints
from webhooks import archive as archives
from webhooks.archive import clearing, files, writing
from webhooks.archive.verifying import problems
from webhooks.audit import Actor
from webhooks.models import AuditEntry, Lease, WebhookEvent
from webhooks.redaction import Wish, redact
from webhooks.tests.archiving import documents, old_event

pytestmark = pytest.mark.django_db(transaction=True)

ACTOR = Actor("test")


@contextmanager
def _killed_on_the_disk_too(points: KillPoints) -> Any:
    def around(name: str) -> Any:
        step: Callable[..., Any] = getattr(files, name)

        def watched(*args: Any) -> Any:
            points.reach(f"before {name}")
            result = step(*args)
            points.reach(f"after {name}")
            return result

        return mock.patch.object(files, name, watched)

    with ExitStack() as stack:
        for name in ("to_bytes", "rename", "remove", "_to_the_disk"):
            stack.enter_context(around(name))
        stack.enter_context(points.installed())
        yield


def _archive(folder: str, kill_at: int | None, opened_again: Any = None) -> list[str]:
    """The points that were reached, if it lived."""
    points = KillPoints(kill_at)
    complete = clearing.complete

    def somebody_is_faster(name: str, **kwargs: Any) -> int:
        WebhookEvent.objects.filter(pk=opened_again).update(review="OPEN")
        return complete(name, **kwargs)

    with (
        override_settings(ARCHIVE_DIR=folder),
        mock.patch.object(writing, "complete", somebody_is_faster if opened_again else complete),
        _killed_on_the_disk_too(points),
    ):
        before = writing.moment_before(timedelta(days=90))
        writing.archive_events(before=before, actor=ACTOR)
    return points.reached


def _redact(folder: str, email: str, kill_at: int | None) -> list[str]:
    points = KillPoints(kill_at)
    with override_settings(ARCHIVE_DIR=folder), _killed_on_the_disk_too(points):
        redact(Wish(email, "asked by letter", ACTOR))
    return points.reached


@pytest.fixture
def folder(settings: Any, tmp_path: Path) -> Path:
    settings.ARCHIVE_DIR = tmp_path / "archive"
    return tmp_path / "archive"


def _time_passes() -> None:
    """So much that a dead one's lease is anybody's."""
    Lease.objects.update(expires_at=Now())


def _assert_all_are_kept(bodies: dict[Any, bytes]) -> None:
    for event in WebhookEvent.objects.filter(pk__in=bodies):
        assert archives.read(event).raw_body == bodies[event.pk]
        assert (event.raw_body is None) == (event.archived_in is not None)


def _new_events(number: int) -> dict[Any, bytes]:
    events = [old_event(status="failed") for _ in range(number)]
    return {event.pk: bytes(event.raw_body or b"") for event in events}


@pytest.mark.parametrize("one_is_opened_again", [False, True])
def test_no_event_is_lost_or_archived_twice_when_the_archiver_is_killed_anywhere(
    buyer: User, monthly: Plan, folder: Path, one_is_opened_again: bool
) -> None:
    def opened_again(bodies: dict[Any, bytes]) -> Any:
        return min(bodies) if one_is_opened_again else None

    bodies = _new_events(2)
    points = children.start(_archive, str(folder), None, opened_again(bodies)).result()
    # The rows, the file's second version if there is one, the lease.
    assert points.count(BEFORE_COMMIT) == points.count(AFTER_COMMIT) == 2 + one_is_opened_again
    assert points.count("before to_bytes") == 2 + one_is_opened_again
    assert points.count("before rename") == (5 if one_is_opened_again else 3)
    for number, point in enumerate(points, 1):
        bodies = _new_events(2)
        killed = children.start(_archive, str(folder), number, opened_again(bodies))
        assert killed.exit_code() == -signal.SIGKILL, point
        # Wherever it died, nothing is cleared that cannot be read.
        _assert_all_are_kept(bodies)
        _time_passes()

        _archive(str(folder), None, opened_again(bodies))

        _assert_all_are_kept(bodies)
        left = WebhookEvent.objects.filter(pk__in=bodies, archived_in__isnull=True)
        assert left.count() == one_is_opened_again, point
        # Every file is whole, and every event is in exactly the one that its row names.
        assert list(problems()) == [], point
    assert not list(folder.glob("*.tmp"))
    assert not list(folder.glob("*.pending.json"))
    ids = [line["id"] for line in documents(folder)]
    assert len(ids) == len(set(ids)) == WebhookEvent.objects.exclude(archived_in=None).count()
    counted = AuditEntry.objects.filter(action="events_archived").values_list("details", flat=True)
    assert sum(details["events"] for details in counted) == len(ids)


def _customer(folder: Path, name: str) -> User:
    """One event archived, one not; the subscription is over."""
    user = UserFactory.create(email=f"{name}@example.com")
    old_event(email=user.email)
    _archive(str(folder), None)
    old_event(email=user.email, days=50)
    Subscription.objects.update(status="INACTIVE", current_period_end=Now() - timedelta(days=1))
    return user


# The customers' time is ended by hand, and nobody in particular erases them.
@pytest.mark.breaks_invariants(
    "subscription_ends_with_its_last_grant",
    "subscription_is_active_while_paid",
    "manual_action_has_an_actor",
)
def test_a_customer_is_erased_in_the_end_when_the_command_is_killed_anywhere(
    monthly: Plan, folder: Path
) -> None:
    first = _customer(folder, "first")
    points = children.start(_redact, str(folder), first.email, None).result()
    # Said first, the file, the rows, the lease.
    assert points.count(AFTER_COMMIT) == 4
    assert points.count("before rename") == 3
    for number, point in enumerate(points, 1):
        if point.startswith("before SELECT"):
            continue  # Between two of the others: nothing changed since the one before it.
        user = _customer(folder, f"killed-{number}")
        email = user.email
        killed = children.start(_redact, str(folder), email, number)
        assert killed.exit_code() == -signal.SIGKILL, point
        _time_passes()

        _redact(str(folder), email, None)

        user.refresh_from_db()
        assert user.email.endswith("@redacted.invalid"), point
        assert not Fact.objects.filter(email=email).exists()
        assert Payment.objects.filter(user=user, status="SUCCEEDED", email=None).count() == 2
        done = AuditEntry.objects.filter(user_id=user.pk, details__step="done")
        assert done.count() == 1, point
        assert list(problems()) == [], point
    assert all(line.get("redacted") for line in documents(folder))
    assert not WebhookEvent.objects.filter(raw_body__isnull=False).exists()
