"""Who works inside: threats 57, 64, 69 and 70. (60 and 61 are in test_logs.py.)"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from django.contrib import admin
from django.db import connection
from django.db.models import Model
from django.db.models.functions import Now
from django.test import RequestFactory
from django.urls import URLPattern, URLResolver, get_resolver

from billing.models import Fact, Grant, Payment
from subscriptions.models import Plan, Subscription, User
from tests.factories import StaffFactory
from tests.looking import effects
from tests.sending import deliver, paid, result
from webhooks.api.base import ApiView
from webhooks.audit import Actor
from webhooks.models import AuditEntry, ReviewItem, WebhookEvent
from webhooks.outcomes import Outcome
from webhooks.review import reprocess

SOMEBODY = Actor("staff:somebody", is_person=True)


@pytest.mark.django_db
def test_57_reprocessing_an_applied_event_has_no_second_effect(buyer: User, monthly: Plan) -> None:
    deliver(paid())
    before, end = effects(), Subscription.objects.get().current_period_end
    event = WebhookEvent.objects.get()

    for _click in range(2):
        assert reprocess(event, SOMEBODY, "to be sure").result == "duplicate"

    assert effects() == before
    assert Subscription.objects.get().current_period_end == end
    entries = AuditEntry.objects.filter(action="event_reprocessed", event_id=event.pk)
    assert set(entries.values_list("actor", "reason")) == {("staff:somebody", "to be sure")}
    assert len(entries) == 2


@pytest.mark.django_db(transaction=True)
def test_57_of_two_people_at_once_one_applies_it(monthly: Plan) -> None:
    assert result(deliver(paid())) == (200, "unlinked")
    User.objects.bulk_create([User(email="buyer@example.com")])
    event = WebhookEvent.objects.get()
    start = Barrier(2)

    def click(person: str) -> Outcome:
        try:
            start.wait(timeout=10)
            return reprocess(event, Actor(person, is_person=True))
        finally:
            connection.close()

    with ThreadPoolExecutor() as people:
        outcomes = list(people.map(click, ["staff:one", "staff:two"]))

    assert sorted(outcome.result for outcome in outcomes) == ["duplicate", "processed"]
    assert Grant.objects.count() == 1
    applied = AuditEntry.objects.get(action="payment_applied")
    reprocessed = AuditEntry.objects.filter(action="event_reprocessed")
    assert {entry.actor for entry in reprocessed} == {"staff:one", "staff:two"}
    assert applied.actor in {"staff:one", "staff:two"}


@pytest.mark.django_db
def test_57_a_person_can_open_what_recovery_leaves_alone(buyer: User, monthly: Plan) -> None:
    """Say, after the price was mended."""
    deliver(paid(amount="1000"))
    event = WebhookEvent.objects.get()
    monthly.prices.update(amount="1000")

    assert reprocess(event, SOMEBODY).result == "processed"

    event.refresh_from_db()
    assert (event.status, event.review) == ("PROCESSED", "RESOLVED")
    assert AuditEntry.objects.get(action="payment_applied").actor == "staff:somebody"


@pytest.mark.django_db
@pytest.mark.parametrize("changes", [{"signature_valid": False}, {"review": "DISMISSED"}])
def test_57_what_is_forged_or_dismissed_is_not_run_by_anybody(
    buyer: User, monthly: Plan, changes: dict[str, Any]
) -> None:
    deliver(paid(amount="1"))
    WebhookEvent.objects.update(**changes)
    monthly.prices.update(amount="1")

    assert reprocess(WebhookEvent.objects.get(), SOMEBODY).result == "duplicate"
    assert not Grant.objects.exists()


def _views(patterns: list[Any]) -> Iterator[tuple[str, Any]]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            for route, view in _views(pattern.url_patterns):
                yield f"{pattern.pattern}{route}", view
        else:
            assert isinstance(pattern, URLPattern)
            yield str(pattern.pattern), pattern.callback


def test_64_only_webhooks_and_health_go_without_csrf() -> None:
    exempt = {
        getattr(view, "view_class", None) or getattr(view, "cls", view)
        for _route, view in _views(get_resolver().url_patterns)
        if getattr(view, "csrf_exempt", False)
    }
    # The API's own authentication checks sessions for CSRF (test_api_access.py).
    outside = {view for view in exempt if not issubclass(view, ApiView)}
    assert {view.__qualname__ for view in outside} == {"WebhookView", "HealthView", "NoSuchUrl"}


def test_64_the_walk_over_the_urls_sees_them_all() -> None:
    routes = {route for route, _view in _views(get_resolver().url_patterns)}
    assert any("reviewitem" in route for route in routes)
    assert sum(route.startswith("webhooks/") for route in routes) == 2


def test_64_the_csrf_middleware_is_on(settings: Any) -> None:
    assert "django.middleware.csrf.CsrfViewMiddleware" in settings.MIDDLEWARE


@pytest.mark.django_db
@pytest.mark.parametrize("model", [WebhookEvent, ReviewItem, Grant, AuditEntry, Payment, Fact])
def test_69_the_admin_cannot_add_edit_or_delete(model: type[Model], rf: RequestFactory) -> None:
    """Not even the superuser."""
    request = rf.get("/admin/")
    request.user = StaffFactory.create()
    registered = admin.site._registry.get(model)
    if registered is None:
        return  # What is not shown cannot be edited.

    assert not registered.has_add_permission(request)
    assert not registered.has_change_permission(request)
    assert not registered.has_delete_permission(request)
    assert "delete_selected" not in registered.get_actions(request)


def test_69_events_grants_and_the_audit_are_shown_at_all() -> None:
    assert {WebhookEvent, ReviewItem, Grant, AuditEntry, Payment} <= set(admin.site._registry)


@pytest.mark.django_db
def test_69_deleting_something_else_takes_none_of_them_along(buyer: User, monthly: Plan) -> None:
    deliver(paid())
    before = effects()
    for row in (buyer, monthly, Subscription.objects.get()):
        with pytest.raises(Exception, match="protected foreign keys"):
            row.delete()
    assert effects() == before


def test_70_the_deployment_check_is_clean() -> None:
    env = {
        "PATH": os.environ["PATH"],
        "DATABASE_URL": os.environ["DATABASE_URL"],
        "REDIS_URL": "redis://redis:6379/0",
        "SECRET_KEY": "n2Vb8xqTz0LkWm5RfYc7UjHg4DsAe1PoIi9Xv3KdQ6tZ-n2Vb8xqTz0LkWm5",
        "ALLOWED_HOSTS": "pay.example.com",
        "WEBHOOK_SECRETS_TILDA": "a-long-enough-secret",
        "TRUSTED_PROXIES": "10.0.0.1",
    }
    run = subprocess.run(
        [sys.executable, "manage.py", "check", "--deploy", "--fail-level", "WARNING"],
        env=env,
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert "no issues" in run.stdout
    assert "WARNING" not in run.stderr


@pytest.mark.django_db
def test_57_what_is_due_is_never_shortened_by_looking(buyer: User, monthly: Plan) -> None:
    """Reprocessing something that waits leaves it waiting."""
    deliver(paid(email="nobody@example.com"))
    event = WebhookEvent.objects.get()
    assert reprocess(event, SOMEBODY).result == "unlinked"
    assert WebhookEvent.objects.filter(next_attempt_at__gt=Now()).count() == 1
