"""Payments that wait for somebody, and how they find each other."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now
from django.utils import timezone
from pytest_django import Settings

from billing import giving
from billing.linking import find_user
from billing.models import Grant, Payment
from subscriptions.models import Plan, User
from tests.factories import UserFactory
from tests.looking import in_another_connection
from tests.sending import deliver, paid, result
from webhooks.linking import AT_ONCE
from webhooks.models import AuditEntry, WebhookEvent
from webhooks.recovery import recover

pytestmark = pytest.mark.django_db(transaction=True)


def _make_due(**age: int) -> None:
    WebhookEvent.objects.exclude(next_attempt_at=None).update(
        next_attempt_at=Now() - timedelta(seconds=1)
    )
    if age:
        WebhookEvent.objects.update(received_at=Now() - timedelta(**age))


def _sweep() -> dict[str, int]:
    _make_due()
    return recover(for_s=10)


def test_waiting_uses_up_no_attempts(monthly: Plan, settings: Settings) -> None:
    deliver(paid())
    for _ in range(settings.WEBHOOK_MAX_ATTEMPTS + 2):
        assert _sweep() == {"unlinked": 1}

    event = WebhookEvent.objects.get()
    assert (event.status, event.error_code) == ("FAILED_RETRYABLE", "USER_MISSING")
    assert (event.attempts, event.review) == (0, None)


@pytest.mark.parametrize(
    ("email", "code"), [("nobody@example.com", "USER_MISSING"), (None, "UNLINKED_PAYMENT")]
)
def test_after_thirty_days_a_person_has_a_look(
    monthly: Plan, settings: Settings, email: str | None, code: str
) -> None:
    assert settings.WEBHOOK_WAIT_FOR_USER_DAYS == 30
    deliver(paid(email=email))
    _make_due(days=30, minutes=-1)
    assert recover(for_s=10) == {"unlinked": 1}
    _make_due(days=30, minutes=1)
    assert recover(for_s=10) == {"failed_final": 1}

    event = WebhookEvent.objects.get()
    assert (event.status, event.error_code) == ("FAILED_FINAL", code)
    assert (event.review, event.next_attempt_at) == ("OPEN", None)
    assert not recover(for_s=10)


def test_who_appears_after_that_still_gets_it(monthly: Plan) -> None:
    deliver(paid())
    _make_due(days=31)
    recover(for_s=10)

    UserFactory.create(email="buyer@example.com")

    event = WebhookEvent.objects.get()
    assert (event.status, event.review) == ("PROCESSED", "RESOLVED")
    assert Grant.objects.count() == 1


def test_a_new_user_gets_what_waits_at_once(monthly: Plan) -> None:
    for _ in range(2):
        deliver(paid())

    user = UserFactory.create(email="BUYER@example.com")

    assert set(Payment.objects.values_list("user_id", flat=True)) == {user.pk}
    assert Grant.objects.count() == 2
    assert set(WebhookEvent.objects.values_list("status", flat=True)) == {"PROCESSED"}
    actors = AuditEntry.objects.filter(action="payment_applied").values_list("actor", flat=True)
    assert set(actors) == {"linking"}


def test_more_than_a_few_are_left_to_the_sweep(monthly: Plan) -> None:
    """Signing up must not take long."""
    for _ in range(AT_ONCE + 1):
        deliver(paid())
    UserFactory.create(email="buyer@example.com")
    assert Grant.objects.count() == AT_ONCE
    assert _sweep() == {"processed": 1}


def test_a_user_who_changes_the_address_gets_what_waits_for_it(monthly: Plan) -> None:
    deliver(paid())
    user = UserFactory.create(email="before@example.com")
    assert not Grant.objects.exists()

    user.email = "buyer@example.com"
    user.save()

    assert Payment.objects.get().user == user
    assert Grant.objects.count() == 1


def test_an_address_changed_by_itself_links_too(monthly: Plan) -> None:
    deliver(paid())
    user = UserFactory.create(email="before@example.com")
    user.email = "buyer@example.com"
    user.save(update_fields=["email"])
    assert Grant.objects.count() == 1


def test_a_user_whom_no_signal_announced_is_found_by_the_sweep(monthly: Plan) -> None:
    deliver(paid())
    User.objects.bulk_create([User(email="buyer@example.com")])
    assert not Grant.objects.exists()
    assert _sweep() == {"processed": 1}


def test_nobody_gets_what_another_paid(monthly: Plan) -> None:
    deliver(paid())
    deliver(paid(email=None))
    UserFactory.create(email="other@example.com")
    assert _sweep() == {"unlinked": 2}
    assert not Grant.objects.exists()


def test_whoever_signs_up_sees_no_error_of_an_old_payment(
    monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_down(*_args: object, **_kwargs: object) -> Any:
        raise RuntimeError

    deliver(paid())
    with monkeypatch.context() as patch:
        patch.setattr("webhooks.linking.run", break_down)
        UserFactory.create(email="buyer@example.com")
    assert _sweep() == {"processed": 1}


def test_only_verified_addresses_are_linked_where_that_is_wanted(
    monthly: Plan, settings: Settings
) -> None:
    settings.LINK_VERIFIED_EMAILS_ONLY = True
    user = UserFactory.create(email="buyer@example.com")
    assert result(deliver(paid())) == (200, "unlinked")
    user.save()
    assert _sweep() == {"unlinked": 1}
    assert not Grant.objects.exists()

    user.email_verified_at = timezone.now()
    user.save(update_fields=["email_verified_at"])

    assert Grant.objects.count() == 1
    assert result(deliver(paid())) == (200, "processed")


def test_a_user_created_while_we_park_is_not_missed(
    monthly: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """We looked before he was there, and he looked before our parking was committed."""

    def look_then_he_appears(email: str | None) -> Any:
        found = find_user(email)
        monkeypatch.setattr(giving, "find_user", find_user)
        in_another_connection(lambda: UserFactory.create(email=email))
        return found

    monkeypatch.setattr(giving, "find_user", look_then_he_appears)

    assert result(deliver(paid())) == (200, "processed")

    assert Grant.objects.count() == 1
    event = WebhookEvent.objects.get()
    assert (event.status, event.attempts, event.next_attempt_at) == ("PROCESSED", 0, None)


def test_what_a_person_dismissed_is_not_linked_by_itself(monthly: Plan) -> None:
    deliver(paid())
    _make_due(days=31)
    recover(for_s=10)
    WebhookEvent.objects.update(review="DISMISSED")

    UserFactory.create(email="buyer@example.com")

    assert not Grant.objects.exists()
    assert WebhookEvent.objects.get().review == "DISMISSED"
