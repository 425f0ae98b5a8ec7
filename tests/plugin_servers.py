"""Gives the tests servers and an environment of their own, whatever the developer's shell holds.

A plugin rather than a conftest.py, because pytest-django imports the settings before it reads any
conftest.py. Each run has its own folder and servers, so that runs beside each other, or beside
`make run`, never meet.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from config import embedded
from config.embedded.files import exclusive_lock

_DATA_DIR = Path(os.environ.get("TOLLGATE_DATA_DIR") or Path(__file__).parent.parent / ".data")

# What a developer may have exported for a copy they run; it must not change a test's outcome.
_DROPPED_PREFIXES = (
    "ALIPAY_",
    "CELERY_",
    "CONSUME_",
    "DJANGO_",
    "METRICS_",
    "OUTBOX_",
    "WEB_",
    "WEBHOOK_",
)
_DROPPED_NAMES = (
    "ACCEPT_TEST_PAYMENTS",
    "ARCHIVE_DIR",
    "CSRF_TRUSTED_ORIGINS",
    "HOST",
    "INITIATED_PROVIDERS",
    "LINK_VERIFIED_EMAILS_ONLY",
    "LOCK_TIMEOUT_MS",
    "LOG_LEVEL",
    "PORT",
    "STATEMENT_TIMEOUT_MS",
    "TRUSTED_PROXIES",
)


@pytest.hookimpl(wrapper=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> Generator[None]:
    # xdist's workers inherit the environment that the first process prepared.
    if "PYTEST_XDIST_WORKER" not in os.environ:
        # A CI runner's SIGTERM must tidy up just as Ctrl-C does.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        stack = ExitStack()
        early_config.add_cleanup(stack.close)
        run_dir = stack.enter_context(_run_folder())
        stack.callback(embedded.stop, run_dir)
        _prepare_environment(run_dir)
    _use_own_metrics_folder()
    return (yield)


@contextmanager
def _run_folder() -> Generator[Path]:
    """A folder for this run, locked as long as the run lives and removed at its end."""
    _DATA_DIR.mkdir(parents=True, exist_ok=True)
    with exclusive_lock(_DATA_DIR / "tests.lock"):
        for leftover in _DATA_DIR.glob("test-*"):
            _remove_if_abandoned(leftover)
        run_dir = Path(tempfile.mkdtemp(prefix="test-", dir=_DATA_DIR))
        lock = (run_dir / "run.lock").open("a")
        fcntl.flock(lock, fcntl.LOCK_EX)
    with lock:
        yield run_dir
        shutil.rmtree(run_dir)


def _remove_if_abandoned(run_dir: Path) -> None:
    with (run_dir / "run.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        embedded.stop(run_dir)
        shutil.rmtree(run_dir)


def _prepare_environment(run_dir: Path) -> None:
    database_url = os.environ.get("TEST_DATABASE_URL")
    redis_url = os.environ.get("TEST_REDIS_URL")
    endpoints = embedded.start(
        run_dir, durable=False, postgres=not database_url, redis=not redis_url
    )
    for name in list(os.environ):
        if name.startswith(_DROPPED_PREFIXES) or name in _DROPPED_NAMES:
            del os.environ[name]
    os.environ |= {
        "TOLLGATE_DATA_DIR": str(run_dir),
        "DATABASE_URL": database_url or endpoints.database_url or "",
        "REDIS_URL": redis_url or endpoints.redis_url or "",
        "SECRET_KEY": "a-key-for-tests-that-protects-nothing-at-all-0123456789",
        "DEBUG": "0",
        "ALLOWED_HOSTS": "*",
        "WEBHOOK_SECRETS_TILDA": "test-secret,second-secret",
    }


def _use_own_metrics_folder() -> None:
    # Of this process alone: what the other workers' tests count must not show in its sums.
    metrics = tempfile.mkdtemp(prefix="prometheus-", dir=os.environ["TOLLGATE_DATA_DIR"])
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = metrics
