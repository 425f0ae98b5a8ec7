"""What is in the database and in the counters, for tests that must prove that nothing changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

import pytest
from django.apps import apps
from django.db import connection
from prometheus_client import REGISTRY

from billing.models import Fact, Grant, Payment
from subscriptions.models import Subscription
from webhooks.models import WebhookEvent

OUR_APPS = ("subscriptions", "billing", "webhooks")


def contents() -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table of ours."""
    return {
        model._meta.label: sorted(model._default_manager.values_list(), key=repr)
        for app in OUR_APPS
        for model in apps.get_app_config(app).get_models()
    }


def effects() -> dict[str, int]:
    """How many rows there are of everything that genuine traffic makes."""
    return {
        "events": WebhookEvent.objects.exclude(signature_valid=False).count(),
        "payments": Payment.objects.count(),
        "facts": Fact.objects.count(),
        "grants": Grant.objects.count(),
        "subscriptions": Subscription.objects.count(),
    }


NOTHING = {"events": 0, "payments": 0, "facts": 0, "grants": 0, "subscriptions": 0}


def event_of(event_id: str) -> WebhookEvent:
    """By the provider's id; not one that is in conflict with it."""
    return WebhookEvent.objects.get(external_event_id=event_id, conflict_of=None)


def state_of(event_id: str) -> tuple[str, str | None, str | None]:
    """Status, error code, review."""
    event = event_of(event_id)
    return event.status, event.error_code, event.review


def counted(name: str, **labels: str) -> float:
    """A metric's value in this process: other test workers share the multiprocess folder."""
    return REGISTRY.get_sample_value(name, labels) or 0.0


def database_parameters() -> dict[str, Any]:
    """For a second connection, straight to the server."""
    wanted = ("host", "port", "dbname", "user", "password")
    parameters = connection.get_connection_params()
    return {name: parameters[name] for name in wanted if name in parameters}


@contextmanager
def database_away() -> Iterator[None]:
    """New connections meet a socket that nobody listens on. Only for transactional tests."""
    connection.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(connection.settings_dict, "HOST", "/nowhere")
        patch.setitem(connection.settings_dict, "PORT", "1")
        try:
            yield
        finally:
            connection.close()


def in_another_connection(function: Any, *args: Any) -> Any:
    """Run it in a thread, which has a database connection of its own; wait and return."""
    answers: list[Any] = []

    def run() -> None:
        try:
            answers.append(function(*args))
        finally:
            connection.close()

    thread = Thread(target=run)
    thread.start()
    thread.join(timeout=30)
    assert answers, "the other connection's work failed or hangs"
    return answers[0]
