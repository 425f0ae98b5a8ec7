"""Every metric of the specification, right in number and bounded in labels."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models.functions import Now
from prometheus_client import REGISTRY
from prometheus_client.parser import text_string_to_metric_families

from billing.models import Payment
from subscriptions.models import Plan, User
from tests.factories import UserFactory
from tests.looking import counted, database_away
from tests.sending import deliver, paid, send, to_bytes
from webhooks import metrics
from webhooks.models import WebhookEvent
from webhooks.recovery import recover

pytestmark = pytest.mark.django_db

COUNTERS = (
    "webhook_processed_total",
    "webhook_duplicate_total",
    "webhook_failed_retryable_total",
    "webhook_failed_final_total",
    "webhook_invalid_signature_total",
    "payments_unlinked_total",
    "payments_amount_mismatch_total",
    "webhook_recovered_total",
)
HISTOGRAMS = ("webhook_processing_duration_ms", "webhook_processing_lag_ms")


def _scraped() -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    body, content_type = metrics.exposition()
    assert content_type.startswith("text/plain")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(body.decode())
        for sample in family.samples
    }


def _gauge(name: str, **labels: str) -> float:
    return _scraped()[name, frozenset(labels.items())]


def _twice(payload: dict[str, Any]) -> None:
    deliver(payload)
    deliver(payload)


def _recovered() -> None:
    deliver(paid(email="late@example.com"))
    User.objects.bulk_create([User(email="late@example.com")])
    WebhookEvent.objects.update(next_attempt_at=Now() - timedelta(minutes=1))
    recover(for_s=10)


@pytest.mark.parametrize(
    ("act", "rises"),
    [
        (lambda: deliver(paid()), {"webhook_processed_total": 1}),
        (
            lambda: _twice(paid()),
            {"webhook_processed_total": 1, "webhook_duplicate_total": 1},
        ),
        (
            lambda: deliver(paid(email=None)),
            {"payments_unlinked_total": 1, "webhook_failed_retryable_total": 1},
        ),
        (
            lambda: deliver(paid(amount="1")),
            {"payments_amount_mismatch_total": 1, "webhook_failed_final_total": 1},
        ),
        (lambda: deliver(paid(plan_id="none")), {"webhook_failed_final_total": 1}),
        (lambda: deliver(b"nonsense"), {"webhook_failed_final_total": 1}),
        (lambda: deliver(paid(status="failed")), {}),
        (lambda: send(to_bytes(paid())), {"webhook_invalid_signature_total": 1}),
        (lambda: send(b"nonsense"), {}),
        (
            _recovered,
            {
                "payments_unlinked_total": 1,
                "webhook_failed_retryable_total": 1,
                "webhook_processed_total": 1,
                "webhook_recovered_total": 1,
            },
        ),
    ],
)
def test_each_outcome_is_counted(
    buyer: User, monthly: Plan, act: Callable[[], Any], rises: dict[str, int]
) -> None:
    before = {name: counted(name, provider="tilda") for name in COUNTERS}
    act()
    after = {name: counted(name, provider="tilda") for name in COUNTERS}
    assert {name: after[name] - before[name] for name in COUNTERS} == {
        **dict.fromkeys(COUNTERS, 0),
        **rises,
    }


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (lambda: deliver(paid()), "200"),
        (lambda: deliver(b"nonsense"), "400"),
        (lambda: send(to_bytes(paid())), "401"),
        (lambda: send(b"", method="GET"), "405"),
        (lambda: send(b"", {"Content-Encoding": "gzip"}), "415"),
    ],
)
def test_each_request_is_counted_by_its_answer(
    buyer: User, monthly: Plan, act: Callable[[], Any], code: str
) -> None:
    provider = "unknown" if code == "405" else "tilda"
    labels = {"provider": provider, "http_code": code}
    before = counted("webhook_requests_total", **labels)
    act()
    assert counted("webhook_requests_total", **labels) == before + 1


def test_times_are_measured(buyer: User, monthly: Plan) -> None:
    def observed() -> list[float]:
        return [counted(f"{name}_count", provider="tilda") for name in HISTOGRAMS]

    before = observed()
    payload = paid()
    deliver(payload)
    deliver(payload)
    # Both requests took their time; one event came to its end.
    assert observed() == [before[0] + 2, before[1] + 1]


def test_the_lag_is_from_receiving_to_the_end(monthly: Plan) -> None:
    deliver(paid())
    WebhookEvent.objects.update(
        next_attempt_at=Now() - timedelta(minutes=1),
        received_at=Now() - timedelta(seconds=1000),
    )
    UserFactory.create(email="buyer@example.com")
    before = counted("webhook_processing_lag_ms_sum", provider="tilda")
    recover(for_s=10)
    lag_ms = counted("webhook_processing_lag_ms_sum", provider="tilda") - before
    assert 990_000 <= lag_ms < 1_100_000


def test_every_name_and_label_of_the_specification_is_exported(buyer: User, monthly: Plan) -> None:
    _twice(paid())
    deliver(paid(amount="1"))
    send(to_bytes(paid()))
    _recovered()

    found = {(name, frozenset(dict(labels))) for name, labels in _scraped()}

    for name in COUNTERS:
        assert (name, frozenset({"provider"})) in found
    assert ("webhook_requests_total", frozenset({"provider", "http_code"})) in found
    for name in HISTOGRAMS:
        assert (f"{name}_bucket", frozenset({"provider", "le"})) in found
    assert ("webhook_events_backlog", frozenset({"status"})) in found


def test_backlogs_are_read_when_somebody_asks(buyer: User, monthly: Plan) -> None:
    assert _gauge("webhook_events_backlog", status="FAILED_RETRYABLE") == 0
    deliver(paid())
    deliver(paid(email=None))
    deliver(paid(email="nobody@example.com"))
    deliver(paid(amount="1"))
    WebhookEvent.objects.filter(error_code="USER_MISSING").update(
        status="VALIDATED", next_attempt_at=Now() - timedelta(hours=2)
    )
    Payment.objects.update(created_at=Now() - timedelta(hours=2))

    assert _gauge("webhook_events_backlog", status="FAILED_RETRYABLE") == 1
    assert _gauge("webhook_events_backlog", status="VALIDATED") == 1
    assert _gauge("webhook_events_backlog", status="RECEIVED") == 0
    assert _gauge("webhook_events_backlog", status="FAILED_FINAL") == 1
    assert 7100 <= _gauge("webhook_oldest_due_seconds") < 7260
    assert _gauge("webhook_events_stuck") == 1
    assert _gauge("payments_unlinked_old") == 2
    assert _gauge("payments_succeeded_not_applied_old") == 3
    assert _gauge("tollgate_database_up") == 1


def test_what_is_young_is_not_old(monthly: Plan) -> None:
    deliver(paid(email=None))
    assert _gauge("payments_unlinked_old") == 0
    assert _gauge("payments_succeeded_not_applied_old") == 0


def test_callers_cannot_make_labels() -> None:
    """Each label's value is a series that is kept for ever."""

    def series() -> set[tuple[str, str]]:
        return {
            (sample.name, repr(sorted(sample.labels.items())))
            for family in REGISTRY.collect()
            for sample in family.samples
        }

    def probe(word: str) -> None:
        send(to_bytes(paid(event_type=word, status=word)), url=f"/webhooks/{word}")
        deliver(paid(event_type=word, status=word, provider=word))
        send(b"", url=f"/webhooks/{word}", method=word.upper())
        send(b"", {"Content-Encoding": word, "Host": word})

    probe("first")
    before = series()
    for number in range(20):
        probe(f"random-{number}")
    assert series() == before


@pytest.mark.django_db(transaction=True)
def test_without_a_database_the_counters_are_still_there() -> None:
    send(to_bytes(paid()))
    with database_away():
        scraped = _scraped()
    assert scraped["tollgate_database_up", frozenset()] == 0
    assert any(name == "webhook_invalid_signature_total" for name, _ in scraped)
    assert not any(name == "webhook_events_backlog" for name, _ in scraped)


def test_other_processes_are_counted_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two web processes, say, or one and a worker: each writes files that are summed up."""
    count = (
        "import django; django.setup(); from webhooks import metrics;"
        "metrics.processed.labels('tilda').inc(3);"
        "metrics.lag_ms.labels('tilda').observe(7)"
    )
    env = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "PROMETHEUS_MULTIPROC_DIR": str(tmp_path),
    }
    root = Path(__file__).parents[2]
    for _ in range(2):
        subprocess.run([sys.executable, "-c", count], env=env, cwd=root, check=True)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))

    assert _gauge("webhook_processed_total", provider="tilda") == 6
    assert _gauge("webhook_processing_lag_ms_count", provider="tilda") == 2


def test_a_single_process_serves_its_own_counts(
    monkeypatch: pytest.MonkeyPatch, buyer: User, monthly: Plan
) -> None:
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR")
    deliver(paid())
    own = counted("webhook_processed_total", provider="tilda")
    assert _gauge("webhook_processed_total", provider="tilda") == own
