from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from tqdm import tqdm

from webhooks import metrics
from webhooks.invariants.running import (
    RULES,
    STATEMENT_TIMEOUT_S,
    Finding,
    check,
    snapshot,
    violated,
)


class Command(BaseCommand):
    help = (
        "Check every rule that must always hold, over one read-only snapshot of the database. "
        "Exits with an error when one is broken."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--rule", action="append", choices=list(RULES), metavar="NAME", help="only this one"
        )
        parser.add_argument("--list", action="store_true", help="say what the rules are")
        parser.add_argument(
            "--statement-timeout",
            type=_seconds,
            default=STATEMENT_TIMEOUT_S,
            metavar="SECONDS",
            help=f"the longest that one statement may take; default {STATEMENT_TIMEOUT_S}",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["list"]:
            for name, rule in RULES.items():
                self.stdout.write(f"{name}: {' '.join((rule.__doc__ or '').split())}")
            return
        names = list(dict.fromkeys(options["rule"] or RULES))
        with snapshot(statement_timeout_s=options["statement_timeout"]):
            steps = tqdm(check(names), total=len(names), unit="rule", file=sys.stderr)
            findings = list(steps)
        metrics.show_invariants(findings, all_checked=len(names) == len(RULES))
        self._report(findings)

    def _report(self, findings: list[Finding]) -> None:
        broken = violated(findings)
        for finding in broken:
            more = "" if finding.number == len(finding.examples) else ", …"
            self.stdout.write(
                f"{finding.rule}: {finding.number} ({', '.join(finding.examples)}{more})"
            )
        self.stdout.write(f"{len(findings)} rule(s) checked, {len(broken)} broken")
        if broken:
            raise CommandError(f"{len(broken)} rule(s) broken, named above")


def _seconds(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:12]) < 10**6):
        raise ArgumentTypeError(f"{text!r} is not a positive number of seconds")
    return int(text)
