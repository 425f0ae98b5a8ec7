from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Func, IntegerField, Max, Min, Sum
from tqdm import tqdm

from webhooks.archive.ages import parse_age
from webhooks.archive.errors import ArchiveError
from webhooks.archive.files import folder
from webhooks.archive.writing import (
    FILE_EVENTS,
    Archived,
    archivable,
    archive_events,
    moment_before,
)
from webhooks.audit import Actor

# People still look at what came in today.
SHORTEST = timedelta(days=1)


class Command(BaseCommand):
    help = (
        "Move what old finished events brought (payload, raw bytes, headers) into compressed, "
        "verified files. The rows stay, so that a duplicate years later is still a duplicate. "
        "Can be stopped at any time and started again."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--older-than", type=parse_age, default="90d", metavar="AGE", help="90d, 12w or 24h"
        )
        parser.add_argument("--dry-run", action="store_true", help="only say what there is to do")
        parser.add_argument(
            "--batch-size",
            type=_positive,
            default=FILE_EVENTS,
            help=f"events per file, {FILE_EVENTS:,} at most",
        )
        parser.add_argument("--limit", type=_positive, help="at most this many, oldest first")
        parser.add_argument("--force", action="store_true", help="also what is younger than a day")

    def handle(self, *args: Any, **options: Any) -> None:
        age: timedelta = options["older_than"]
        if age < SHORTEST and not options["force"]:
            raise CommandError("less than a day: people still look at these. --force does it")
        before, limit = moment_before(age), options["limit"]
        if options["dry_run"]:
            self._say_what_there_is(before, limit)
            return
        total = archivable(before).count()
        with tqdm(
            total=min(total, limit or total), unit="event", file=sys.stderr, disable=not total
        ) as bar:
            try:
                done = archive_events(
                    before=before,
                    actor=Actor.command_line(),
                    limit=limit,
                    file_events=min(options["batch_size"], FILE_EVENTS),
                    on_progress=bar.update,
                )
            except (ArchiveError, OSError) as error:
                raise CommandError(f"{type(error).__name__}: {error}") from error
        self._summarise(done)

    def _say_what_there_is(self, before: datetime, limit: int | None) -> None:
        chosen = archivable(before).order_by("received_at", "pk")[:limit]
        size = Func("raw_body", function="octet_length", output_field=IntegerField())
        total = chosen.count()
        told = chosen.aggregate(size=Sum(size), first=Min("received_at"), last=Max("received_at"))
        self.stdout.write(
            f"dry run, nothing was changed; {total} event(s), {told['size'] or 0:,} bytes of "
            f"bodies, received {told['first']} to {told['last']}"
            if total
            else "dry run, nothing was changed; 0 event(s)"
        )

    def _summarise(self, done: Archived) -> None:
        self.stdout.write(f"{done.events} event(s) archived, {done.files} file(s) in {folder()}")
        if done.damaged:
            ids = ", ".join(map(str, done.damaged[:10]))
            raise CommandError(
                f"{len(done.damaged)} event(s) were left alone, their bytes do not match their "
                f"hash: {ids}"
            )


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:12]) < 10**9):
        raise ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)
