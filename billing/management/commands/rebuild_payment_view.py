from __future__ import annotations

import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import Error as DatabaseError
from tqdm import tqdm

from billing.models import OutboxMessage
from billing.outbox.read_model import delete_rows_without_message, newest_messages, put_again

DEFAULT_BATCH = 500


class Command(BaseCommand):
    help = (
        "Make the payments' read model anew from the newest outbox message of each payment. Safe "
        "while messages go on arriving: a row never goes back to an older one."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--batch", type=int, default=DEFAULT_BATCH, help="payments at a time")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["batch"] < 1:
            raise CommandError("--batch must be at least 1")
        try:
            deleted, written = self._rebuild(batch=options["batch"])
        except DatabaseError as error:
            raise CommandError(f"the database refused: {type(error).__name__}") from error
        self.stdout.write(
            f"{written} payment(s) written from the outbox, "
            f"{deleted} row(s) without a message deleted."
        )

    def _rebuild(self, *, batch: int) -> tuple[int, int]:
        # First: a row with a number that no message has would win against every real one.
        deleted = delete_rows_without_message()
        written = 0
        keys = OutboxMessage.objects.filter(data__has_key="payment").values("key")
        total = keys.distinct().count()
        with tqdm(total=total, unit="payment", file=sys.stderr, disable=not total) as progress:
            for messages in newest_messages(batch=batch):
                put_again(messages)
                written += len(messages)
                progress.update(len(messages))
        return deleted, written
