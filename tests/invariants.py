"""For the end of any test that should leave the database as it must always be."""

from __future__ import annotations

from contextlib import nullcontext

from django.db import connection

from webhooks.invariants.running import Finding, check, snapshot, violated


def broken_rules() -> list[Finding]:
    # A test that rolls back at its end has its transaction open already.
    with nullcontext() if connection.in_atomic_block else snapshot():
        return violated(check())


def assert_invariants() -> None:
    broken = broken_rules()
    assert not broken, broken
