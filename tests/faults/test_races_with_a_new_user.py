"""A payment and its user appear at the same moment: they must not miss each other."""

from __future__ import annotations

from functools import partial
from threading import Thread
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.models.signals import post_save

from billing.models import Grant
from billing.settling import settle
from subscriptions.models import Plan, User
from tests.factories import UserFactory
from tests.faults.servers import Web
from tests.faults.threads import at_once
from tests.faults.truths import assert_applied_once, assert_periods_adjacent
from tests.sending import deliver, paid
from webhooks import process, signals
from webhooks.models import WebhookEvent

pytestmark = pytest.mark.django_db(transaction=True)

ROUNDS = 25
EMAIL = "new@example.com"


def test_it_never_leaves_a_payment_parked_when_its_user_appears_at_the_same_moment(
    web: Web, monthly: Plan
) -> None:
    results = set()
    for number in range(ROUNDS):
        email = f"user-of-round-{number}@example.com"
        payload = paid(email=email)

        answer, user = at_once(partial(web.send, payload), partial(UserFactory.create, email=email))

        results.add(answer.json()["status"])
        assert_applied_once(payload)
        assert_periods_adjacent(user, number=1)
    assert results <= {"processed", "unlinked", "duplicate"}


def _create_user_while_parking(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user commits after the walk has looked for it and before the parking commits."""

    def create() -> None:
        try:
            UserFactory.create(email=EMAIL)
        finally:
            connection.close()

    def settle_then_wait(*args: Any, **kwargs: Any) -> Any:
        settlement = settle(*args, **kwargs)
        if not User.objects.filter(email=EMAIL).exists():
            thread = Thread(target=create)
            thread.start()
            thread.join()
        return settlement

    monkeypatch.setattr(process, "settle", settle_then_wait)


def test_it_looks_again_when_the_user_was_created_while_the_payment_was_being_parked(
    monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    _create_user_while_parking(monkeypatch)
    payload = paid(email=EMAIL)

    assert deliver(payload).json()["status"] == "processed"

    assert_applied_once(payload)


def test_a_payment_stays_parked_although_its_user_is_there_without_the_second_look(
    monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    _create_user_while_parking(monkeypatch)
    monkeypatch.setattr(process, "find_user", lambda email: None)

    assert deliver(paid(email=EMAIL)).json()["status"] == "unlinked"

    assert User.objects.filter(email=EMAIL).exists()
    assert WebhookEvent.objects.get().status == "FAILED_RETRYABLE"
    assert not Grant.objects.exists()


def _park_while_the_user_is_not_committed(payload: dict[str, Any]) -> None:
    """The walk looks, parks and commits while the user is in an open transaction."""

    def send() -> None:
        try:
            assert deliver(payload).json()["status"] == "unlinked"
        finally:
            connection.close()

    with transaction.atomic():
        UserFactory.create(email=EMAIL)
        thread = Thread(target=send)
        thread.start()
        thread.join()


def test_it_links_on_commit_when_the_payment_was_parked_before_the_user_was_committed(
    monthly: Plan,
) -> None:
    payload = paid(email=EMAIL)

    _park_while_the_user_is_not_committed(payload)

    assert_applied_once(payload)


def test_a_payment_stays_parked_although_its_user_is_there_when_nothing_links_on_commit(
    monthly: Plan,
) -> None:
    """Negative control."""
    post_save.disconnect(signals.link_when_a_user_appears, sender=User)
    try:
        _park_while_the_user_is_not_committed(paid(email=EMAIL))
    finally:
        post_save.connect(signals.link_when_a_user_appears, sender=User)

    assert WebhookEvent.objects.get().status == "FAILED_RETRYABLE"
    assert not Grant.objects.exists()
