"""`manage.py dispatch_outbox --once`."""

from __future__ import annotations

from io import StringIO
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from pytest_django import Settings

from billing.models import OutboxTarget
from tests.telling import receiver, statuses, target, tell

pytestmark = pytest.mark.django_db(transaction=True)


def run(*arguments: str, fails: str = "") -> str:
    out = StringIO()
    if fails:
        with pytest.raises(CommandError, match=fails):
            call_command("dispatch_outbox", *arguments, stdout=out)
    else:
        call_command("dispatch_outbox", *arguments, stdout=out)
    return out.getvalue()


def test_it_sends_what_is_due_and_says_so(settings: Settings):
    with receiver() as api:
        settings.OUTBOX_TARGETS = (target(url=api.url),)
        tell(uuid4(), 3)
        assert run("--once") == (
            "read-model: 3 delivered, 0 failed, 0 dead; 0 pending and 0 dead are left\n"
            "crm: 3 delivered, 0 failed, 0 dead; 0 pending and 0 dead are left\n"
        )
    assert statuses("read-model") == statuses("crm") == ["DELIVERED"] * 3


def test_it_fails_when_something_failed_and_serves_the_others(settings: Settings):
    with receiver() as api:
        api.answer = lambda _: (500, {})
        settings.OUTBOX_TARGETS = (target(url=api.url),)
        tell(uuid4(), 2)
        told = run("--once", fails=r"1 attempt\(s\) failed")
    assert "read-model: 2 delivered" in told
    assert "crm: 0 delivered, 1 failed, 0 dead; 2 pending and 0 dead are left" in told


def test_it_says_when_a_target_is_left_alone(settings: Settings):
    settings.OUTBOX_TARGETS = (target(url="http://127.0.0.1:9/"),)
    tell(uuid4())
    OutboxTarget.objects.create(name="crm", open_until="2999-01-01T00:00:00Z")
    assert "crm: nothing sent" in run("--once", "--target", "crm")
    assert statuses("read-model") == ["PENDING"], "nobody asked for it"


def test_an_unknown_target_is_named():
    run("--once", "--target", "nobody", fails="no such target: nobody")
