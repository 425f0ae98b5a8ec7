from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.servers import Web, web_server


@pytest.fixture(scope="module")
def web(django_db_setup: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """The web server as it is in production: two workers with several threads each."""
    folder: Path = tmp_path_factory.mktemp("web")
    with web_server(folder, WEB_WORKERS="2", WEB_THREADS="4") as server:
        yield server
