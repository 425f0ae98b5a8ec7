from __future__ import annotations

import sys
from argparse import ArgumentTypeError
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db.models import QuerySet
from tqdm import tqdm

from billing.codes import ErrorCode
from webhooks.audit import Actor
from webhooks.models import EventStatus, ReviewState, WebhookEvent
from webhooks.outcomes import Outcome
from webhooks.providers.base import Result
from webhooks.review import reprocess, reprocess_and_roll_back

FAILED = (Result.FAILED_RETRYABLE, Result.FAILED_FINAL)
DEFAULT_STATUSES = (EventStatus.RECEIVED, EventStatus.VALIDATED, EventStatus.FAILED_RETRYABLE)


class Command(BaseCommand):
    help = (
        "Process stored events again, by the same code as the webhook itself. Without ids or "
        "filters: everything unfinished. What was applied stays applied once."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("event_ids", nargs="*", type=UUID, metavar="EVENT_ID")
        parser.add_argument("--provider")
        parser.add_argument("--status", choices=EventStatus.values)
        parser.add_argument("--error-code", choices=ErrorCode.values)
        parser.add_argument("--since", type=_moment, help="received at or after, ISO 8601")
        parser.add_argument("--until", type=_moment, help="received before, ISO 8601")
        parser.add_argument("--limit", type=_positive, help="at most this many, oldest first")
        parser.add_argument("--reason", type=_reason, default="", help="for the audit log")
        parser.add_argument("--dry-run", action="store_true", help="say what would change")

    def handle(self, *args: Any, **options: Any) -> None:
        named = set(options["event_ids"])
        known = WebhookEvent.objects.filter(pk__in=named).values_list("pk", flat=True)
        if missing := named - set(known):
            raise CommandError(f"no such event: {', '.join(sorted(map(str, missing)))}")
        ids = list(self._select(options).values_list("pk", flat=True))
        results: Counter[str] = Counter()
        actor = Actor.command_line()
        for event in self._with_progress(ids):
            outcome = self._run(event, actor, options)
            results[outcome.result] += 1
            if options["dry_run"]:
                self._explain(outcome)
            elif outcome.result in FAILED:
                self.stdout.write(f"{event.pk} {event}: {outcome.code} {outcome.message or ''}")
        self._summarise(results, dry_run=options["dry_run"])

    def _select(self, options: dict[str, Any]) -> QuerySet[WebhookEvent]:
        filters = {
            "provider": options["provider"],
            "status": options["status"],
            "error_code": options["error_code"],
            "received_at__gte": options["since"],
            "received_at__lt": options["until"],
        }
        chosen = {name: value for name, value in filters.items() if value is not None}
        if options["event_ids"]:
            chosen["pk__in"] = options["event_ids"]
        elif not {"status", "error_code"} & chosen.keys():
            chosen["status__in"] = DEFAULT_STATUSES
        events = WebhookEvent.objects.filter(**chosen)
        if not options["event_ids"]:
            # What would not be run anyway.
            events = events.filter(signature_valid=True, conflict_of__isnull=True).exclude(
                review=ReviewState.DISMISSED, review__isnull=False
            )
        return events.order_by("received_at")[: options["limit"]]

    def _with_progress(self, ids: list[UUID]) -> Iterator[WebhookEvent]:
        for event_id in tqdm(ids, unit="event", file=sys.stderr, disable=not ids):
            yield WebhookEvent.objects.defer("payload", "raw_body", "headers").get(pk=event_id)

    def _run(self, event: WebhookEvent, actor: Actor, options: dict[str, Any]) -> Outcome:
        if not options["dry_run"]:
            return reprocess(event, actor, options["reason"])
        # One event at a time, so that a long dry run does not hold the locks that intake needs.
        return reprocess_and_roll_back(event, actor)

    def _explain(self, outcome: Outcome) -> None:
        change, event = outcome.change, outcome.event
        self.stdout.write(f"{event.pk} {event.event_key}: would be {outcome.result}", ending="")
        self.stdout.write(f" ({outcome.code})" if outcome.code else "")
        if change.payment_id:
            before = change.payment_status_before or "new"
            self.stdout.write(
                f"  payment {change.payment_id}: {before} -> {change.payment_status_after}"
            )
        if change.linked_now:
            self.stdout.write(f"  linked to user {change.user_id}")
        if change.applied_now:
            self.stdout.write(
                f"  subscription {change.subscription_id}: "
                f"{change.subscription_end_before} -> {change.subscription_end_after}"
            )

    def _summarise(self, results: Counter[str], *, dry_run: bool) -> None:
        total = results.total()
        words = {Result.DUPLICATE: "nothing to do"}
        told = ", ".join(f"{words.get(Result(r), r)}: {n}" for r, n in results.most_common())
        prefix = "dry run, nothing was changed; " if dry_run else ""
        self.stdout.write(f"{prefix}{total} event(s). {told}")
        if failed := sum(results[result] for result in FAILED):
            raise CommandError(f"{failed} of {total} failed, for the reasons above")


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r} is not an ISO 8601 time") from error
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _reason(text: str) -> str:
    if len(text) > 500:
        raise ArgumentTypeError("at most 500 characters")
    return text


def _positive(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text[:12]) < 10**9):
        raise ArgumentTypeError(f"{text!r} is not a positive number")
    return int(text)
