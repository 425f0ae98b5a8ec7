"""PostgreSQL stops, restarts or is killed while the web server runs."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.faults.own_servers import BUYER, OwnPostgres
from tests.faults.servers import Web, wait_until, web_server
from tests.sending import paid

DELIVERIES = 200


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnPostgres]:
    server = OwnPostgres(tmp_path_factory.mktemp("postgres"))
    try:
        server.migrate()
        yield server
    finally:
        server.remove()


@pytest.fixture
def running(database: OwnPostgres) -> OwnPostgres:
    database.start()
    return database


def _pay() -> dict[str, Any]:
    return paid(email=BUYER)


def _assert_each_applied_once(database: OwnPostgres, payloads: list[dict[str, Any]]) -> None:
    ids = [payload["event_id"] for payload in payloads]
    statuses = database.read(
        """
        SELECT event.status, count(*)
        FROM webhooks_webhookevent event
        JOIN billing_payment payment USING (provider, external_payment_id)
        JOIN billing_grant ON payment_id = payment.id
        WHERE event.external_event_id = ANY(%s)
        GROUP BY 1
        """,
        ids,
    )
    assert statuses == [("PROCESSED", len(ids))]
    gaps = database.read(
        """
        SELECT * FROM (
            SELECT ends_at, lead(starts_at) OVER (ORDER BY starts_at) AS next FROM billing_grant
        ) AS periods WHERE next <> ends_at
        """
    )
    assert gaps == []


def test_it_answers_503_while_postgres_is_away_and_goes_on_when_it_is_back(
    running: OwnPostgres, tmp_path: Path
) -> None:
    payloads = [_pay(), _pay()]
    with web_server(tmp_path, DATABASE_URL=running.url) as web:
        assert web.send(payloads[0]).status_code == 200
        running.stop()
        for _ in range(2):  # with the connection that broke, and without one
            answer = web.send(payloads[1], timeout_s=5)
            assert answer.status_code == 503
            assert int(answer.headers["Retry-After"]) > 0
            assert answer.json()["error"]["code"] == "UNAVAILABLE"
        health = web.get("/webhooks/health")
        assert health.status_code == 503
        running.start()

        assert web.send(payloads[1]).json()["status"] == "processed"
        assert web.get("/webhooks/health").status_code == 200
    _assert_each_applied_once(running, payloads)


def test_a_restart_of_postgres_between_two_deliveries_is_not_noticed(
    running: OwnPostgres, tmp_path: Path
) -> None:
    payloads = [_pay(), _pay()]
    # One thread, so that the second delivery meets the connection of the first.
    with web_server(tmp_path, DATABASE_URL=running.url, WEB_THREADS="1") as web:
        assert web.send(payloads[0]).json()["status"] == "processed"
        running.stop()
        running.start()

        assert web.send(payloads[1]).json()["status"] == "processed"
    _assert_each_applied_once(running, payloads)


def test_it_loses_nothing_it_acknowledged_when_everything_is_killed_under_load(
    running: OwnPostgres, tmp_path: Path
) -> None:
    payloads = [_pay() for _ in range(DELIVERIES)]
    acknowledged: list[str] = []
    refused: list[int] = []

    def send(web: Web, payload: dict[str, Any]) -> None:
        try:
            answer = web.send(payload, timeout_s=10)
        except httpx.TransportError:
            return
        if answer.is_success:
            acknowledged.append(payload["event_id"])
        else:
            refused.append(answer.status_code)

    with (
        web_server(tmp_path, DATABASE_URL=running.url, WEB_WORKERS="2") as web,
        ThreadPoolExecutor(8) as threads,
    ):
        for payload in payloads:
            threads.submit(send, web, payload)
        wait_until(lambda: len(acknowledged) >= DELIVERIES // 4)
        running.kill()
        # The web server lives on for a moment, and must not acknowledge what it cannot keep.
        wait_until(lambda: len(refused) >= 8 or len(acknowledged) == DELIVERIES)
        web.kill()
    assert set(refused) == {503}

    running.start()
    stored = running.read(
        "SELECT count(*) FROM webhooks_webhookevent WHERE external_event_id = ANY(%s)",
        acknowledged,
    )
    assert stored == [(len(acknowledged),)]
    with web_server(tmp_path, DATABASE_URL=running.url, WEB_WORKERS="2") as web:
        answers = web.send_all(payloads, at_once=8)
    assert {answer.status_code for answer in answers} == {200}
    _assert_each_applied_once(running, payloads)
