"""`python -m tests.faults.serving`: config.serve as it is, around tests.faults.wsgi."""

from __future__ import annotations

from typing import Any
from unittest import mock

from granian import Granian

from config import serve


def _around_the_faults(_target: str, **options: Any) -> Any:
    return Granian("tests.faults.wsgi:application", **options)


if __name__ == "__main__":
    with mock.patch.object(serve, "Granian", _around_the_faults):
        serve.main()
