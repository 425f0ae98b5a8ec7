from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.faults.servers import Web, web_server
from tests.invariants import assert_invariants, broken_rules

_BREAKS = "breaks_invariants"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", f"{_BREAKS}(*rules): does damage on purpose, which these rules find and no other"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Whatever raced or was killed here, at the end all rules hold; or, in a negative control, its
    damage is found. In the call itself: the fixtures' end empties the tables."""
    yield
    damage = item.get_closest_marker(_BREAKS)
    if damage is not None:
        broken = {finding.rule for finding in broken_rules()}
        assert broken, "no rule found the damage"
        assert broken <= set(damage.args)
    elif item.get_closest_marker("django_db") is not None:
        assert_invariants()


@pytest.fixture(scope="module")
def web(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """The web server as it is in production: two workers with several threads each."""
    folder: Path = tmp_path_factory.mktemp("web")
    with web_server(folder, WEB_WORKERS="2", WEB_THREADS="4") as server:
        yield server
