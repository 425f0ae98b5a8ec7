"""Every metric there is. Counters live in the process; backlogs are read from the database when
Prometheus asks. Labels are bounded: provider names come from the code, never from a URL."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from billing.codes import ErrorCode
from webhooks.outcomes import Outcome
from webhooks.providers.base import Result

if TYPE_CHECKING:
    from webhooks.invariants.running import Finding

_MS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)
_LAG_MS = (*_MS, 60_000, 600_000, 3_600_000, 86_400_000, 604_800_000)

requests = Counter("webhook_requests", "Deliveries answered", ["provider", "http_code"])
processed = Counter("webhook_processed", "Events that ended PROCESSED", ["provider"])
ignored = Counter("webhook_ignored", "Events that ended IGNORED", ["provider"])
duplicate = Counter("webhook_duplicate", "Deliveries of an event already done", ["provider"])
conflict = Counter("webhook_conflict", "Same event id, other content", ["provider"])
failed_retryable = Counter(
    "webhook_failed_retryable", "Attempts that ended FAILED_RETRYABLE", ["provider"]
)
failed_final = Counter("webhook_failed_final", "Events that ended FAILED_FINAL", ["provider"])
invalid_signature = Counter(
    "webhook_invalid_signature", "Deliveries that did not prove themselves", ["provider"]
)
unlinked = Counter("payments_unlinked", "Payments that found nobody to link to", ["provider"])
amount_mismatch = Counter(
    "payments_amount_mismatch", "Payments that differ from the plan's price", ["provider"]
)
recovered_total = Counter(
    "webhook_recovered", "Events that recovery brought to PROCESSED", ["provider"]
)
security_events = Counter("webhook_security_events", "Lines for the security log", ["kind"])
duration_ms = Histogram(
    "webhook_processing_duration_ms", "Request to answer", ["provider"], buckets=_MS
)
lag_ms = Histogram(
    "webhook_processing_lag_ms", "received_at to PROCESSED", ["provider"], buckets=_LAG_MS
)
# Whichever process checked last is right, also when it is gone since.
invariant_violations = Gauge(
    "tollgate_invariant_violations",
    "What breaks a rule that must always hold, when the rules were checked last",
    ["rule"],
    multiprocess_mode="mostrecent",
)
invariants_checked = Gauge(
    "tollgate_invariants_checked_timestamp_seconds",
    "When all rules were checked last",
    multiprocess_mode="mostrecent",
)

_BY_RESULT = {
    Result.PROCESSED: [processed],
    Result.IGNORED: [ignored],
    Result.DUPLICATE: [duplicate],
    Result.CONFLICT: [conflict],
    Result.UNLINKED: [unlinked, failed_retryable],
    Result.FAILED_RETRYABLE: [failed_retryable],
    Result.FAILED_FINAL: [failed_final],
}


def count(outcome: Outcome, *, recovered: bool = False) -> None:
    provider = outcome.event.provider
    if outcome.still_parked:
        return
    for counter in _BY_RESULT[outcome.result]:
        counter.labels(provider).inc()
    if outcome.code == ErrorCode.AMOUNT_MISMATCH and outcome.result is not Result.DUPLICATE:
        amount_mismatch.labels(provider).inc()
    processed.labels(provider).inc(outcome.finished_along)
    if outcome.result is Result.PROCESSED:
        lag_ms.labels(provider).observe(outcome.lag_ms)
    if outcome.result is Result.PROCESSED and recovered:
        recovered_total.labels(provider).inc(1 + outcome.finished_along)


def show_invariants(findings: Iterable[Finding], *, all_checked: bool) -> None:
    for finding in findings:
        invariant_violations.labels(finding.rule).set(finding.number)
    if all_checked:
        invariants_checked.set_to_current_time()


def exposition() -> tuple[bytes, str]:
    """All processes of this container or local copy, and the backlogs."""
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR"):
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    else:
        registry = CollectorRegistry()
        registry.register(_InProcess())
    registry.register(_Backlogs())
    return generate_latest(registry), CONTENT_TYPE_LATEST


class _InProcess(Collector):
    def collect(self) -> Iterable[Metric]:
        return REGISTRY.collect()


class _Backlogs(Collector):
    def collect(self) -> Iterable[Metric]:
        from django.db import Error as DatabaseError

        from webhooks.backlog import Unavailable, read_backlog
        from webhooks.outbox_backlog import outbox_gauges

        up = GaugeMetricFamily("tollgate_database_up", "Whether the backlogs could be read")
        try:
            backlog, outbox = read_backlog(), list(outbox_gauges())
        except (Unavailable, DatabaseError):
            up.add_metric([], 0)
            return [up]
        up.add_metric([], 1)
        events = GaugeMetricFamily(
            "webhook_events_backlog", "Events not finished, or in review", labels=["status"]
        )
        for status, number in backlog.events.items():
            events.add_metric([status], number)
        return [up, events, *(_gauge(*row) for row in backlog.gauges()), *outbox]


def _gauge(name: str, documentation: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, documentation, value=value)
