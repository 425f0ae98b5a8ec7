"""Environment variables in, Python values out. Only settings.py calls this."""

import os
from collections.abc import Mapping
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured


class Env:
    def __init__(self, values: Mapping[str, str]) -> None:
        self._values = values

    def text(self, name: str, default: str = "") -> str:
        return self._values.get(name, default).strip()

    def flag(self, name: str, *, default: bool = False) -> bool:
        value = self.text(name).lower()
        if value in {"", "1", "0", "true", "false", "yes", "no", "on", "off"}:
            return value in {"1", "true", "yes", "on"} if value else default
        raise ImproperlyConfigured(f"{name} must be 1 or 0, not {value!r}")

    def number(self, name: str, default: int) -> int:
        value = self.text(name)
        if not value:
            return default
        if not (value.isascii() and value.isdigit()):
            raise ImproperlyConfigured(f"{name} must be a whole number, not {value!r}")
        return int(value)

    def words(self, name: str) -> tuple[str, ...]:
        return tuple(word for part in self.text(name).split(",") if (word := part.strip()))

    def words_by_suffix(self, prefix: str) -> dict[str, tuple[str, ...]]:
        """`WEBHOOK_SECRETS_TILDA=a,b` is found as `{"TILDA": ("a", "b")}`."""
        return {
            name.removeprefix(prefix): self.words(name)
            for name in self._values
            if name.startswith(prefix)
        }


def read(data_dir: Path) -> Env:
    """The process environment; a local copy's file fills in what is not set.

    `make run` writes that file. It is not looked at once both servers are configured, so a
    production process can never pick up a developer's DEBUG or secrets from disk.
    """
    if os.environ.get("DATABASE_URL") and os.environ.get("REDIS_URL"):
        return Env(os.environ)
    return Env({**_read_file(data_dir / "local.env"), **os.environ})


def _read_file(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    pairs = (line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, value in pairs}
