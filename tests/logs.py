"""The log as it would be written to standard output: parsed lines, or their bare text."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Lines(list[dict[str, Any]]):
    text = ""

    def named(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self if line["event"] == event]


@contextmanager
def read_logs() -> Iterator[Lines]:
    """Filled when the block ends. Every line must be one JSON object."""
    lines, stream = Lines(), io.StringIO()
    root = logging.getLogger()
    (configured,) = (handler for handler in root.handlers if handler.get_name() == "stdout")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(configured.formatter)
    root.addHandler(handler)
    try:
        yield lines
    finally:
        root.removeHandler(handler)
        lines.text = stream.getvalue()
        lines.extend(json.loads(line) for line in lines.text.splitlines())
