"""What the durable point promises when somebody else holds the row."""

from __future__ import annotations

import psycopg
import pytest
from django.db import connection
from psycopg.conninfo import make_conninfo

from subscriptions.models import Plan, User
from tests.sending import deliver, paid
from webhooks.models import WebhookEvent


@pytest.mark.django_db(transaction=True)
def test_a_repeat_that_waits_too_long_for_the_first_is_sent_away_not_hung(
    buyer: User, monthly: Plan, settings: object
) -> None:
    settings.LOCK_TIMEOUT_MS = 200  # type: ignore[attr-defined]
    payload = paid()
    deliver(payload)

    with psycopg.connect(_conninfo()) as other:
        other.execute("SELECT 1 FROM webhooks_webhookevent FOR UPDATE")
        blocked = deliver(payload)

    assert blocked.status_code == 503
    assert blocked.headers["Retry-After"]
    assert deliver(payload).json()["status"] == "duplicate"
    assert WebhookEvent.objects.get().deliveries == 2


def _conninfo() -> str:
    parameters = connection.get_connection_params()
    wanted = ("host", "port", "dbname", "user", "password")
    return make_conninfo(**{name: parameters[name] for name in wanted if name in parameters})
