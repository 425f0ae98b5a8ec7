from __future__ import annotations

import socket

import httpx
import pytest

from config import metrics_listener


@pytest.fixture
def origin(monkeypatch: pytest.MonkeyPatch) -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setenv("METRICS_PORT", str(port))
    metrics_listener.start_if_configured()
    return f"http://127.0.0.1:{port}"


@pytest.mark.django_db(transaction=True)
def test_it_serves_the_metrics_and_nothing_else(origin: str):
    answer = httpx.get(f"{origin}/metrics", trust_env=False)
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain")
    assert "tollgate_database_up 1.0" in answer.text
    assert httpx.get(f"{origin}/admin/", trust_env=False).status_code == 404


def test_a_failing_scrape_is_a_500_and_the_next_one_is_answered(
    origin: str, monkeypatch: pytest.MonkeyPatch
):
    def broken() -> tuple[bytes, str]:
        raise RuntimeError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr("webhooks.metrics.exposition", broken)
        answer = httpx.get(f"{origin}/metrics", trust_env=False)
        assert answer.status_code == 500
        assert "disk" not in answer.text
    monkeypatch.setattr("webhooks.metrics.exposition", lambda: (b"fine 1\n", "text/plain"))
    assert httpx.get(f"{origin}/metrics", trust_env=False).text == "fine 1\n"


def test_it_listens_nowhere_unless_told(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("METRICS_PORT", raising=False)
    monkeypatch.setattr(metrics_listener, "ThreadingHTTPServer", None)  # calling it would fail
    metrics_listener.start_if_configured()
