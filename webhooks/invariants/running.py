"""Run the rules, all of them over one and the same snapshot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

from django.db import connection, transaction

from webhooks.invariants import (
    amounts,
    audits,
    events,
    outbox,
    payments,
    purchases,
    schema,
    wallets,
)
from webhooks.invariants.querying import Rule

RULES: dict[str, Rule] = {
    rule.__name__: rule
    for module in (payments, events, purchases, wallets, audits, amounts, outbox, schema)
    for rule in module.RULES
}
EXAMPLES = 10
# Of one statement, or of one step through a long result: generous, and yet an end.
STATEMENT_TIMEOUT_S = 300

# Read only, so that not even a mistake in a rule could change anything. Every rule reads its result
# to the end: plans must not favour the first rows.
_LIMITS = """
    SELECT set_config('statement_timeout', %(timeout_ms)s, true),
        set_config('idle_in_transaction_session_timeout', %(timeout_ms)s, true),
        set_config('cursor_tuple_fraction', '1', true)
"""


@dataclass(frozen=True)
class Finding:
    """What one rule found: how much in all, and the first few."""

    rule: str
    number: int
    examples: tuple[str, ...]


@contextmanager
def snapshot(*, statement_timeout_s: int = STATEMENT_TIMEOUT_S) -> Iterator[None]:
    """A transaction in which nothing changes: what happens meanwhile is not seen, so that two rules
    cannot contradict each other."""
    with transaction.atomic(durable=True), connection.cursor() as cursor:
        cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        cursor.execute(_LIMITS, {"timeout_ms": str(statement_timeout_s * 1000)})
        yield


def check(names: Iterable[str] = RULES) -> Iterator[Finding]:
    """One finding per rule, as each is done, also where there was nothing to find."""
    return map(_run, names)


def violated(findings: Iterable[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.number]


def _run(name: str) -> Finding:
    """Counts all of it, and keeps only the first few."""
    found = RULES[name]()
    examples = tuple(islice(found, EXAMPLES))
    return Finding(name, len(examples) + sum(1 for _ in found), examples)
