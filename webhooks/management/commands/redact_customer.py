from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from tqdm import tqdm

from webhooks.archive.errors import ArchiveError
from webhooks.audit import Actor
from webhooks.redaction import CannotRedact, Wish, look, objections, redact
from webhooks.redaction_scope import Scope


class Command(BaseCommand):
    help = (
        "Erase one customer's personal data: e-mails, and what their events brought, also in the "
        "archive. Payments, amounts, ids, hashes, outcomes and the audit log stay. For good: an "
        "erased event cannot be processed again. Can be stopped and started again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--email", required=True, type=_some_text)
        parser.add_argument("--reason", required=True, type=_some_text, help="for the audit log")
        parser.add_argument("--dry-run", action="store_true", help="only say what there is")
        parser.add_argument(
            "--force",
            action="store_true",
            help="although the customer still has a running subscription or money here",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        email, reason = options["email"], options["reason"]
        if email.lower() in reason.lower():
            raise CommandError("the reason goes into the audit log: it must not hold the e-mail")
        scope = look(email)
        if not scope:
            self.stdout.write("nothing is kept under this e-mail")
        elif options["dry_run"]:
            self._say_what_there_is(scope, force=options["force"])
        else:
            wish = Wish(email, reason, Actor.command_line(), options["force"])
            self.stdout.write(f"erased: {_told(self._redact(scope, wish))}")

    def _redact(self, scope: Scope, wish: Wish) -> Scope:
        total = len(scope.by_file)
        with tqdm(total=total, unit="file", file=sys.stderr, disable=not total) as bar:
            try:
                return redact(wish, on_file=bar.update)
            except CannotRedact as refusal:
                raise CommandError(f"refused: {refusal}") from refusal
            except (ArchiveError, OSError) as error:
                raise CommandError(
                    f"{type(error).__name__}: {error}. Mend that, and run it again"
                ) from error

    def _say_what_there_is(self, scope: Scope, *, force: bool) -> None:
        self.stdout.write(f"dry run, nothing was erased; there is: {_told(scope)}")
        if found := objections(scope, force=force):
            raise CommandError(f"would be refused: {'; '.join(found)}")


def _told(scope: Scope) -> str:
    user = f"user {scope.user_id}" if scope.user_id else "no user"
    counts = ", ".join(f"{word.replace('_', ' ')}: {n}" for word, n in scope.counts.items())
    return f"{user}, {counts}"


def _some_text(text: str) -> str:
    text = text.strip()
    if not 0 < len(text) <= 500:
        raise ArgumentTypeError("between 1 and 500 characters")
    return text
