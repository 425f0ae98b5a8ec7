"""Tollgate as it is, in a web server that can be told to die at any step of a request."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any

from config.wsgi import application as tollgate
from tests.faults import broken
from tests.faults.kill_points import KillPoints

KILL_AT = "X-Kill-At"
REACHED = "X-Reached"
BEFORE_ANSWER = "before the answer is sent"

if fault := os.environ.get(broken.VARIABLE):
    broken.break_on_purpose(fault)


def application(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    kill_at = environ.pop("HTTP_X_KILL_AT", None)
    points = KillPoints(int(kill_at) if kill_at else None, whole_group=True)

    def answer(status: str, headers: list[tuple[str, str]], *rest: Any) -> Any:
        points.reach(BEFORE_ANSWER)
        return start_response(status, [*headers, (REACHED, json.dumps(points.reached))], *rest)

    with points.installed():
        response: Iterable[bytes] = tollgate(environ, answer)
        return response
