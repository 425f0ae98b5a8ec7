"""kill -9 of a recovering worker; then another one comes."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from billing.models import Payment
from subscriptions.models import Plan, User
from tests.faults import children, jobs
from tests.faults.kill_points import AFTER_COMMIT, BEFORE_COMMIT
from tests.faults.truths import (
    assert_applied_once,
    assert_periods_adjacent,
    make_due,
    store_and_lose,
)
from tests.sending import deliver, paid
from webhooks.models import OPEN_STATUSES, WebhookEvent

pytestmark = pytest.mark.django_db(transaction=True)

MAX_ATTEMPTS = 8


def test_it_applies_once_when_a_worker_is_killed_at_any_statement(
    buyer: User, monthly: Plan
) -> None:
    store_and_lose(paid())
    points = children.start(jobs.recover_until_killed, None).result()
    # Claim, count the attempt, the walk, look for more: else nothing below would be about it.
    commits = [point for point in points if "COMMIT" in point]
    assert commits == [BEFORE_COMMIT, AFTER_COMMIT] * 2
    assert len(points) > 10
    last_commit = len(points) - points[::-1].index(BEFORE_COMMIT)
    for number, point in enumerate(points, 1):
        payload = paid()
        store_and_lose(payload)
        killed = children.start(jobs.recover_until_killed, number)
        assert killed.exit_code() == -signal.SIGKILL, point
        left = make_due()
        assert left == (number <= last_commit), point

        children.start(jobs.recover_until_killed, None).result()

        event = assert_applied_once(payload)
        assert event.next_attempt_at is None
    assert_periods_adjacent(buyer, number=Payment.objects.count())


def test_a_payment_is_applied_once_when_the_sign_up_it_waits_for_is_killed_at_any_statement(
    monthly: Plan,
) -> None:
    def park(name: str) -> dict[str, Any]:
        payload = paid(email=f"{name}@example.com")
        assert deliver(payload).json()["status"] == "unlinked"
        return payload

    park("first")
    points = children.start(jobs.sign_up_until_killed, "first@example.com", None).result()
    assert "subscriptions_user" in points[0]
    assert points[-2:] == [BEFORE_COMMIT, AFTER_COMMIT]
    for number, point in enumerate(points, 1):
        payload = park(f"killed-{number}")
        email = payload["email"]
        killed = children.start(jobs.sign_up_until_killed, email, number)
        assert killed.exit_code() == -signal.SIGKILL, point
        if not User.objects.filter(email=email).exists():
            # Nobody was told that the sign-up worked; they do it again.
            User.objects.bulk_create([User(email=email)])
        make_due()

        children.start(jobs.recover_until_killed, None).result()

        assert_applied_once(payload)
        assert_periods_adjacent(User.objects.get(email=email), number=1)


def test_an_event_that_always_kills_its_worker_ends_in_review_and_its_mates_are_applied(
    buyer: User, monthly: Plan
) -> None:
    poison = paid(external_payment_id="poison")
    mates = [paid() for _ in range(3)]
    for payload in [poison, *mates]:
        store_and_lose(payload)
    kills = 0
    while WebhookEvent.objects.filter(status__in=OPEN_STATUSES).exists():
        # All at once: the mates are claimed by the very worker that dies.
        make_due()
        code = children.start(jobs.recover_and_die_of, "poison").exit_code()
        kills += code == -signal.SIGKILL
        assert code in (0, -signal.SIGKILL)
        assert kills < MAX_ATTEMPTS

    event = WebhookEvent.objects.get(external_payment_id="poison")
    assert (event.status, event.review) == ("FAILED_FINAL", "OPEN")
    assert (event.error_code, event.attempts) == ("RETRIES_EXHAUSTED", MAX_ATTEMPTS)
    # The first attempt was the web process's.
    assert kills == MAX_ATTEMPTS - 1
    for payload in mates:
        assert assert_applied_once(payload).attempts == 2
    assert_periods_adjacent(buyer, number=len(mates))
