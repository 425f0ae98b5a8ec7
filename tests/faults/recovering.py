"""`python -m tests.faults.recovering`: a worker process that recovers what is due, and ends."""

from __future__ import annotations

from pathlib import Path

from tests.faults.servers import start_process, test_database_url


def recover_in_a_process(folder: Path, **environment: str) -> None:
    log = folder / "recovering.log"
    values = {"DATABASE_URL": test_database_url(), **environment}
    code = start_process(["-m", "tests.faults.recovering"], log, values).wait(60)
    assert code == 0, log.read_text()


if __name__ == "__main__":
    from tests.faults import booted  # noqa: F401
    from webhooks.recovery import recover

    recover(for_s=30)
