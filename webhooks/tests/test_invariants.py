"""Each rule fires when it is broken, and none fires when none is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, connection, transaction
from pytest_django import Settings

from billing.models import Grant, Order, Payment
from subscriptions.models import Plan, User
from tests.busy import make_busy
from tests.factories import OrderFactory, UserFactory
from tests.faults.servers import test_database_url
from tests.invariants import assert_invariants
from tests.logs import read_logs
from tests.looking import in_another_connection
from tests.people import ANNA
from tests.sending import deliver, paid
from webhooks import tasks
from webhooks.invariants.running import RULES, STATEMENT_TIMEOUT_S, check, snapshot, violated
from webhooks.leases import lease
from webhooks.metrics import exposition
from webhooks.models import WebhookEvent
from webhooks.redaction import Wish, redact
from webhooks.tests import breaking, breaking_books
from webhooks.tests.archiving import archive, old_event

pytestmark = pytest.mark.django_db
GROUPS = {
    "payments": breaking.PAYMENTS,
    "events": breaking.EVENTS,
    "purchases": breaking.PURCHASES,
    "wallets": breaking_books.WALLETS,
    "audits": breaking_books.AUDITS,
    "amounts": breaking_books.AMOUNTS,
    "outbox": breaking_books.OUTBOX,
    "schema": breaking_books.SCHEMA,
}
committed = pytest.mark.django_db(transaction=True)


@pytest.fixture
def busy(buyer: User, monthly: Plan, settings: Settings, tmp_path: Path) -> None:
    settings.ARCHIVE_DIR = tmp_path / "archive"
    UserFactory.create(email="idle@example.com")
    make_busy(buyer)
    old_event(external_payment_id="archived")
    archive()
    old_event(email="forgotten@example.com", status="failed", days=50)
    redact(Wish("forgotten@example.com", "asked by letter", ANNA))


def _broken() -> set[str]:
    return {finding.rule for finding in violated(check())}


def _command(*arguments: str) -> str:
    out = StringIO()
    call_command("check_invariants", *arguments, stdout=out, stderr=StringIO())
    return out.getvalue()


def _shown(name: str) -> float | None:
    found = re.search(rf"^{re.escape(name)} (.+)$", exposition()[0].decode(), re.MULTILINE)
    return float(found[1]) if found else None


def test_a_busy_database_breaks_no_rule(busy: None) -> None:
    assert Grant.objects.filter(revoked_at__isnull=False).exists()
    assert WebhookEvent.objects.filter(archived_in__isnull=False).exists()
    assert WebhookEvent.objects.filter(raw_body=None, archived_in=None).exists()
    assert_invariants()


def test_an_empty_database_breaks_no_rule(db: None) -> None:
    assert_invariants()


@pytest.mark.parametrize("group", GROUPS)
def test_a_rule_fires_when_it_is_broken(busy: None, group: str) -> None:
    for broken in GROUPS[group]:
        before_it = transaction.savepoint()
        breaking.run(*broken.statements)

        assert _broken() == {broken.rule, *broken.also}, broken
        transaction.savepoint_rollback(before_it)


def test_every_rule_is_broken_once() -> None:
    broken = {each.rule for group in GROUPS.values() for each in group}
    assert broken == set(RULES)


def test_waiting_for_a_user_uses_up_no_attempts(busy: None) -> None:
    breaking.run(
        "UPDATE webhooks_webhookevent SET attempts = 99 WHERE external_payment_id = 'parked'"
    )

    assert "attempts_are_bounded" not in _broken()


def test_the_helper_names_what_is_broken(buyer: User) -> None:
    Payment.objects.create(provider="tilda", external_payment_id="x", amount_refunded=1)

    with pytest.raises(AssertionError, match="payment_equals_its_facts"):
        assert_invariants()


@committed
def test_the_command_is_silent_about_what_holds(buyer: User, monthly: Plan) -> None:
    deliver(paid())

    assert _command() == f"{len(RULES)} rule(s) checked, 0 broken\n"


@committed
def test_the_command_counts_all_and_shows_ten(buyer: User) -> None:
    orders = [OrderFactory.create(user=buyer, amount="1.001") for _ in range(12)]
    out = StringIO()

    with pytest.raises(CommandError, match=r"1 rule\(s\) broken"):
        call_command("check_invariants", stdout=out, stderr=StringIO())

    first, last = out.getvalue().splitlines()
    assert first.startswith("amounts_are_sound: 12 (")
    assert sum(f"order {order.pk}" in first for order in orders) == 10
    assert last == f"{len(RULES)} rule(s) checked, 1 broken"


@committed
def test_the_command_checks_only_the_rules_that_are_asked_for(buyer: User) -> None:
    OrderFactory.create(user=buyer, amount="1.001")

    assert _command("--rule", "no_event_is_stuck") == "1 rule(s) checked, 0 broken\n"
    with pytest.raises(CommandError, match="1 rule"):
        _command("--rule", "no_event_is_stuck", "--rule", "amounts_are_sound")
    with pytest.raises(CommandError, match="invalid choice"):
        _command("--rule", "no_such_rule")


def test_the_command_lists_the_rules_and_what_they_say() -> None:
    listed = dict(line.split(": ", 1) for line in _command("--list").splitlines())

    assert listed.keys() == RULES.keys()
    assert all(text.endswith((".", "…")) for text in listed.values())


@committed
def test_the_process_exits_with_an_error_and_shows_its_progress(buyer: User) -> None:
    OrderFactory.create(user=buyer, amount="1.001")
    url = test_database_url()

    ran = subprocess.run(
        [sys.executable, "manage.py", "check_invariants"],
        env={**os.environ, "DATABASE_URL": url},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert ran.returncode != 0, ran.stderr
    assert "amounts_are_sound: 1 (order " in ran.stdout
    assert f"{len(RULES)}/{len(RULES)}" in ran.stderr


@committed
def test_the_snapshot_does_not_see_what_happens_meanwhile(buyer: User, monthly: Plan) -> None:
    with snapshot():
        assert not violated(check())
        in_another_connection(lambda: OrderFactory.create(user=buyer, amount="1.001"))
        assert not violated(check())
    assert violated(check_in_a_snapshot())


def check_in_a_snapshot() -> list[Any]:
    with snapshot():
        return list(check())


@committed
def test_the_snapshot_cannot_change_anything(buyer: User) -> None:
    order = OrderFactory.create(user=buyer)
    with pytest.raises(DatabaseError, match="read-only"), snapshot():
        Order.objects.filter(pk=order.pk).update(status="CANCELED")


@committed
def test_a_rule_that_takes_too_long_is_stopped() -> None:
    with pytest.raises(DatabaseError, match="timeout"), snapshot(statement_timeout_s=1):
        connection.cursor().execute("SELECT pg_sleep(5)")
    with snapshot(), connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == (f"{STATEMENT_TIMEOUT_S // 60}min",)
    with connection.cursor() as cursor:
        cursor.execute("SHOW statement_timeout")
        assert cursor.fetchone() == ("0",)


@committed
def test_a_snapshot_is_not_taken_inside_of_a_transaction() -> None:
    with transaction.atomic(), pytest.raises(RuntimeError), snapshot():
        pass


@committed
def test_beat_raises_the_metric_and_the_log_and_both_fall_again(buyer: User) -> None:
    metric = 'tollgate_invariant_violations{rule="amounts_are_sound"}'
    order = OrderFactory.create(user=buyer, amount="1.001")

    with read_logs() as lines:
        tasks.check_invariants_task()
    assert _shown(metric) == 1
    assert _shown('tollgate_invariant_violations{rule="no_event_is_stuck"}') == 0
    (line,) = lines.named("invariant_violated")
    assert (line["rule"], line["number"], line["level"]) == ("amounts_are_sound", 1, "error")
    assert line["examples"] == [f"order {order.pk}"]

    checked = _shown("tollgate_invariants_checked_timestamp_seconds")
    order.delete()
    with read_logs() as lines:
        tasks.check_invariants_task()
    assert _shown(metric) == 0
    assert not lines.named("invariant_violated")
    assert checked is not None
    assert checked < (_shown("tollgate_invariants_checked_timestamp_seconds") or 0)


@committed
def test_beat_checks_once_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    monkeypatch.setattr(tasks, "check", lambda: map(ran.append, ["checked"]))
    monkeypatch.setattr("webhooks.metrics.show_invariants", lambda *_args, **_kwargs: None)
    monkeypatch.setattr(tasks, "violated", lambda _findings: [])

    with lease("check_invariants", seconds=60):
        tasks.check_invariants_task()
    assert not ran
    tasks.check_invariants_task()
    assert ran


@committed
def test_a_check_that_fails_leaves_the_time_of_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tasks.check_invariants_task()
    before = _shown("tollgate_invariants_checked_timestamp_seconds")
    monkeypatch.setitem(RULES, "no_event_is_stuck", lambda: iter([1 / 0]))

    with pytest.raises(ZeroDivisionError):
        tasks.check_invariants_task()

    assert _shown("tollgate_invariants_checked_timestamp_seconds") == before
    with lease("check_invariants", seconds=60) as free:
        assert free


def test_what_another_process_found_is_shown_after_it_ended(tmp_path: Path) -> None:
    """Which is also how it is with a worker whose child was replaced."""
    metrics = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    for number in (3, 2):
        code = (
            "from webhooks import metrics; from webhooks.invariants.running import Finding;"
            f"metrics.show_invariants([Finding('r', {number}, ())], all_checked=True)"
        )
        _python(code, metrics)

    shown = _python(
        "from webhooks import metrics; print(metrics.exposition()[0].decode())", metrics
    )

    assert 'tollgate_invariant_violations{rule="r"} 2.0' in shown


def _python(code: str, environment: dict[str, str]) -> str:
    setup = "import django; django.setup(); "
    return subprocess.run(
        [sys.executable, "-c", setup + code],
        env={**environment, "DJANGO_SETTINGS_MODULE": "config.settings"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout


def test_beat_has_it_on_its_schedule() -> None:
    from config.celery import app

    app.finalize()
    entry = app.conf.beat_schedule["check-invariants"]
    assert (entry["task"], entry["schedule"]) == ("webhooks.check_invariants", 900)
    assert entry["task"] == tasks.check_invariants_task.name
