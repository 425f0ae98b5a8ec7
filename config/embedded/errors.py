from __future__ import annotations

from pathlib import Path

_LOG_LINES_SHOWN = 15


class EmbeddedServerError(Exception):
    """An embedded server cannot run; the message tells a person what to do."""


def did_not_start(server: str, log: Path, detail: str = "") -> EmbeddedServerError:
    return EmbeddedServerError(
        f"The embedded {server} did not start. {detail}\n"
        f"The end of its log, {log}:\n{_tail(log)}\n"
        f"Mend that, or set DATABASE_URL and REDIS_URL to servers of your own."
    )


def _tail(log: Path) -> str:
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError as error:
        return f"  (unreadable: {error})"
    return "\n".join(f"  {line}" for line in lines[-_LOG_LINES_SHOWN:]) or "  (empty)"
