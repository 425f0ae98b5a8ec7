"""One scrape shows what all processes counted, whichever of them is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from subscriptions.models import Plan, User
from tests.faults.recovering import recover_in_a_process
from tests.faults.servers import Web, web_server
from tests.faults.truths import store_and_lose
from tests.sending import paid

pytestmark = pytest.mark.django_db(transaction=True)


def _scrape(web: Web) -> dict[str, float]:
    answer = web.get("/metrics")
    assert answer.status_code == 200
    return {
        sample.name: sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
        if sample.labels.get("provider") == "tilda" and sample.name.endswith("_total")
    }


def test_a_scrape_counts_every_web_process_and_the_worker(
    buyer: User, monthly: Plan, tmp_path: Path
) -> None:
    metrics = tmp_path / "shared"
    metrics.mkdir()
    environment = {"PROMETHEUS_MULTIPROC_DIR": str(metrics)}
    with web_server(tmp_path, WEB_WORKERS="2", METRICS_ON_WEB="1", **environment) as web:
        payloads = [paid() for _ in range(30)]
        web.send_all([*payloads, *payloads[:10]], at_once=8)
        for _ in range(3):
            store_and_lose(paid())
        recover_in_a_process(tmp_path, **environment)

        scrapes = [_scrape(web) for _ in range(8)]

    # Two web processes and one worker have counted; else this would prove nothing.
    assert len(list(metrics.glob("counter_*.db"))) >= 3
    for scrape in scrapes:
        assert scrape["webhook_requests_total"] == 40
        assert scrape["webhook_processed_total"] == 33
        assert scrape["webhook_duplicate_total"] == 10
        assert scrape["webhook_recovered_total"] == 3
