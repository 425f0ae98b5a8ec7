"""The database did what it was told, but its reply never arrives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from subscriptions.models import User
from tests.faults.proxy import Proxy, proxy_to
from tests.faults.servers import Web, test_database_url, web_server
from tests.faults.truths import assert_applied_once, assert_periods_adjacent
from tests.sending import paid

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def line(django_db_setup: None) -> Iterator[Proxy]:
    with proxy_to(test_database_url()) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def web(line: Proxy, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    folder: Path = tmp_path_factory.mktemp("web")
    with web_server(folder, DATABASE_URL=line.url, WEB_THREADS="1") as server:
        yield server


@pytest.mark.parametrize(
    ("command", "answer", "redelivery"),
    [
        # The insert can be repeated, so it is: on a new connection.
        ("SELECT 1", (200, "processed"), "duplicate"),
        # Inside the walk: all of it is rolled back, and that is recorded.
        ("UPDATE 1", (200, "failed_retryable"), "processed"),
        # After it: whoever looks again sees that the work is done.
        ("COMMIT", (200, "duplicate"), "duplicate"),
    ],
    ids=["of the insert", "inside the walk", "of COMMIT"],
)
@pytest.mark.usefixtures("buyer", "monthly")
def test_it_applies_once_when_a_reply_is_lost(
    command: str, answer: tuple[int, str], redelivery: str, line: Proxy, web: Web
) -> None:
    assert web.send(paid()).json()["status"] == "processed"
    payload, lost_before = paid(), line.lost
    line.lose_reply_to(command)

    first = web.send(payload)

    assert line.lost == lost_before + 1
    assert (first.status_code, first.json()["status"]) == answer
    assert web.send(payload).json()["status"] == redelivery
    assert_applied_once(payload)
    assert_periods_adjacent(User.objects.get(), number=2)
