"""`.data/local.env`: what a local copy needs and keeps from one start to the next.

config/env.py reads it, so that `manage.py` works in a second terminal without any set-up.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def update(data_dir: Path, current: dict[str, str]) -> dict[str, str]:
    """Keep the secrets of earlier starts, make those that are missing, write `current` anew."""
    path = data_dir / "local.env"
    known = _read(path)
    values = {
        "DEBUG": "1",
        "SECRET_KEY": known.get("SECRET_KEY") or secrets.token_hex(32),
        "WEBHOOK_SECRETS_TILDA": known.get("WEBHOOK_SECRETS_TILDA") or secrets.token_hex(32),
        **current,
    }
    _write_privately(path, "".join(f"{name}={value}\n" for name, value in values.items()))
    return values


def _read(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        return {}
    return dict(line.split("=", 1) for line in lines)


def _write_privately(path: Path, text: str) -> None:
    # Moved into place when whole, and never readable by others, not even for a moment.
    draft = path.with_suffix(".new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)
