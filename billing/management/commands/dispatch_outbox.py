from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import Count

from billing.models import DeliveryStatus, OutboxDelivery
from billing.outbox.dispatcher import ThreadDied, dispatch_once, serve
from billing.outbox.stopping import stop_on_signals
from billing.outbox.targets import Target, all_targets


class Command(BaseCommand):
    help = (
        "Send the outbox's messages to their targets, until it is stopped. Several may run: each "
        "target is served by one at a time."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--once", action="store_true", help="send what is due now, and end")
        parser.add_argument(
            "--target", action="append", metavar="NAME", help="only this one (may be repeated)"
        )
        parser.add_argument(
            "--heartbeat", type=Path, help="a file to touch every second, for a health check"
        )

    def handle(self, *args: Any, **options: Any) -> None:
        targets = _chosen(options["target"])
        if options["once"]:
            self._once(targets)
        else:
            self._serve(targets, options["heartbeat"])

    def _once(self, targets: list[Target]) -> None:
        failed = 0
        for name, results in dispatch_once(targets).items():
            failed += results["failed"] + results["dead"]
            self.stdout.write(f"{name}: {_told(results)}; {_left(name)}")
        if failed:
            raise CommandError(f"{failed} attempt(s) failed; the log lines say why")

    def _serve(self, targets: list[Target], heartbeat: Path | None) -> None:
        stop = stop_on_signals()
        self.stdout.write(f"Dispatching to {', '.join(target.name for target in targets)}.")
        try:
            serve(targets, stop=stop, alive=heartbeat.touch if heartbeat else lambda: None)
        except ThreadDied as error:
            raise CommandError(f"{error}; its last lines say why") from error
        self.stdout.write("Stopped.")


def _chosen(names: list[str] | None) -> list[Target]:
    targets = {target.name: target for target in all_targets()}
    if unknown := set(names or []) - targets.keys():
        raise CommandError(
            f"no such target: {', '.join(sorted(unknown))} (there are {', '.join(targets)})"
        )
    return [target for target in targets.values() if not names or target.name in names]


def _told(results: Counter[str]) -> str:
    if results["held_back"]:
        return "nothing sent: another dispatcher serves it, or it failed and is left alone a while"
    words = ("delivered", "failed", "dead")
    return ", ".join(f"{results[word]} {word}" for word in words)


def _left(target: str) -> str:
    open_statuses = (DeliveryStatus.PENDING, DeliveryStatus.DEAD)
    rows = OutboxDelivery.objects.filter(target=target, status__in=open_statuses)
    counted = dict(rows.values_list("status").annotate(number=Count("id")))
    pending, dead = (counted.get(status, 0) for status in open_statuses)
    return f"{pending} pending and {dead} dead are left"
