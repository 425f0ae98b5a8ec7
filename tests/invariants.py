"""For the end of any test that should leave the database as it must always be."""

from __future__ import annotations

from contextlib import nullcontext

from django.db import connection

from webhooks.invariants.running import check, snapshot, violated


def assert_invariants() -> None:
    # A test that rolls back at its end has its transaction open already.
    with nullcontext() if connection.in_atomic_block else snapshot():
        broken = violated(check())
    assert not broken, broken
