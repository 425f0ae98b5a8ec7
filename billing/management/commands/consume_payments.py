from __future__ import annotations

from collections import Counter
from threading import Event
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing.outbox.consuming import consume
from billing.outbox.incoming import DATABASE_AWAY, Taken
from billing.outbox.sources import SourceAway, open_source
from billing.outbox.stopping import stop_on_signals


class Command(BaseCommand):
    help = (
        "Start the payments that PaymentInitiated messages ask for, until it is stopped. What "
        "cannot be taken is kept for a person (Poison messages in the back office)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--from", dest="source", choices=["redis", "kafka"], required=True)
        parser.add_argument("--once", action="store_true", help="take what is there, and end")

    def handle(self, *args: Any, **options: Any) -> None:
        stop = Event() if options["once"] else stop_on_signals()
        source = open_source(options["source"])
        try:
            results = consume(source, stop=stop, once=options["once"])
        except SourceAway as error:
            raise CommandError(f"{options['source']} does not answer: {error}") from error
        except DATABASE_AWAY as error:
            raise CommandError(f"the database does not answer: {type(error).__name__}") from error
        finally:
            source.close()
        self._summarise(results)

    def _summarise(self, results: Counter[str]) -> None:
        told = ", ".join(f"{results[word]} {word}" for word in Taken)
        self.stdout.write(f"{results.total()} message(s): {told}")
