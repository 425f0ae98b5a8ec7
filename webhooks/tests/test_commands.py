"""manage.py reprocess_webhooks."""

from __future__ import annotations

import getpass
from datetime import UTC, datetime
from io import StringIO
from typing import Any
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command

from billing.models import Grant, Payment
from subscriptions.models import Plan, PlanPrice, Subscription, User
from tests.logs import read_logs
from tests.looking import contents, counted, effects
from tests.sending import deliver, paid, result, send, to_bytes
from webhooks import process as processing
from webhooks.models import AuditEntry, WebhookEvent


def _reprocess(*arguments: object) -> str:
    out = StringIO()
    call_command("reprocess_webhooks", *map(str, arguments), stdout=out)
    return out.getvalue()


def _parked(**fields: Any) -> WebhookEvent:
    payload = paid(**fields)
    assert result(deliver(payload)) == (200, "unlinked")
    return WebhookEvent.objects.get(external_event_id=payload["event_id"])


def _buyer_appears() -> None:
    """Without a signal, so that nothing happens by itself."""
    User.objects.bulk_create([User(email="buyer@example.com")])


@pytest.fixture
def parked(monthly: Plan) -> list[WebhookEvent]:
    """Three events that could be processed now, received an hour apart."""
    events = [_parked(event_id=f"parked-{number}") for number in range(3)]
    for hours, event in enumerate(reversed(events), 1):
        WebhookEvent.objects.filter(pk=event.pk).update(
            received_at=datetime(2024, 1, 1, 12 - hours, tzinfo=UTC)
        )
    _buyer_appears()
    return events


def _processed() -> set[str | None]:
    done = WebhookEvent.objects.filter(status="PROCESSED")
    return set(done.values_list("external_event_id", flat=True))


@pytest.mark.django_db
def test_without_arguments_it_runs_everything_unfinished(parked: list[WebhookEvent]) -> None:
    deliver(paid(event_id="mismatch", amount="1"))

    assert "3 event(s). processed: 3" in _reprocess()

    assert _processed() == {"parked-0", "parked-1", "parked-2"}
    assert Grant.objects.count() == 3
    assert "0 event(s)" in _reprocess()


@pytest.mark.django_db
def test_it_runs_the_events_that_are_named(parked: list[WebhookEvent]) -> None:
    _reprocess(parked[0].pk, parked[2].pk)
    assert _processed() == {"parked-0", "parked-2"}


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--provider", "tilda"], {0, 1, 2}),
        (["--provider", "other"], set()),
        (["--status", "FAILED_RETRYABLE"], {0, 1, 2}),
        (["--status", "RECEIVED"], set()),
        (["--error-code", "USER_MISSING"], {0, 1, 2}),
        (["--error-code", "UNLINKED_PAYMENT"], set()),
        (["--since", "2024-01-01T10:00:00+00:00"], {1, 2}),
        (["--since", "2024-01-01T10:00:00"], {1, 2}),
        (["--until", "2024-01-01T10:00:00Z"], {0}),
        (["--since", "2024-01-01T10:00:00", "--until", "2024-01-01T11:00:00"], {1}),
        (["--limit", "1"], {0}),
        (["--limit", "2", "--since", "2024-01-01"], {0, 1}),
    ],
)
def test_it_takes_filters(
    parked: list[WebhookEvent], arguments: list[str], expected: set[int]
) -> None:
    _reprocess(*arguments)
    assert _processed() == {f"parked-{number}" for number in expected}


@pytest.mark.django_db
def test_a_person_can_run_what_is_in_review(buyer: User, monthly: Plan) -> None:
    deliver(paid(amount="1000"))
    monthly.prices.update(amount="1000")

    assert "processed: 1" in _reprocess("--status", "FAILED_FINAL")
    assert Grant.objects.count() == 1


@pytest.mark.django_db
def test_it_says_who_did_it_and_why(parked: list[WebhookEvent]) -> None:
    _reprocess(parked[0].pk, "--reason", "the import was late")

    entry = AuditEntry.objects.get(action="event_reprocessed")
    assert entry.actor == f"cli:{getpass.getuser()}"
    assert (entry.reason, entry.event_id) == ("the import was late", parked[0].pk)
    assert AuditEntry.objects.get(action="payment_applied").actor == entry.actor


@pytest.mark.django_db
def test_what_was_applied_stays_applied_once(buyer: User, monthly: Plan) -> None:
    deliver(paid())
    before = effects()
    end = Subscription.objects.get().current_period_end

    assert "nothing to do: 1" in _reprocess(WebhookEvent.objects.get().pk)

    assert effects() == before
    assert Subscription.objects.get().current_period_end == end
    assert AuditEntry.objects.filter(action="event_reprocessed").count() == 1


@pytest.mark.django_db
def test_what_is_forged_in_conflict_or_dismissed_is_never_run(buyer: User, monthly: Plan) -> None:
    send(to_bytes(paid()))
    first = paid()
    deliver(first)
    deliver({**first, "amount": "5"})
    deliver(paid(event_id="dismissed", amount="7"))
    WebhookEvent.objects.filter(external_event_id="dismissed").update(review="DISMISSED")
    PlanPrice.objects.update(amount="7")
    before = effects()

    assert "0 event(s)" in _reprocess("--status", "FAILED_FINAL")
    final = WebhookEvent.objects.filter(status="FAILED_FINAL").values_list("pk", flat=True)
    assert "3 event(s). nothing to do: 3" in _reprocess(*map(str, final))

    assert effects() == before
    assert WebhookEvent.objects.filter(status="FAILED_FINAL").count() == 3


@pytest.mark.django_db
def test_a_dry_run_says_what_would_change_and_changes_nothing(parked: list[WebhookEvent]) -> None:
    before = contents()
    processed = counted("webhook_processed_total", provider="tilda")

    with read_logs() as logs:
        told = _reprocess("--dry-run")

    assert contents() == before
    assert counted("webhook_processed_total", provider="tilda") == processed
    assert not [line for line in logs if line["event"] == "webhook"]
    assert "dry run, nothing was changed; 3 event(s). processed: 3" in told
    payment = Payment.objects.get(external_payment_id=parked[0].external_payment_id)
    assert f"{parked[0].pk} tilda:parked-0: would be processed" in told
    assert f"payment {payment.pk}: SUCCEEDED -> SUCCEEDED" in told
    assert told.count("  subscription ") == 3
    assert " -> 20" in told, "the subscription's ends"


@pytest.mark.django_db
def test_a_dry_run_that_would_fail_changes_nothing_either(
    parked: list[WebhookEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processing, "settle", _break)
    before = contents()
    with pytest.raises(CommandError, match="3 of 3 failed"):
        _reprocess("--dry-run")
    assert contents() == before


@pytest.mark.django_db
def test_a_dry_run_of_what_cannot_run_says_so(buyer: User, monthly: Plan) -> None:
    deliver(paid())
    before = contents()
    assert "nothing to do: 1" in _reprocess("--dry-run", "--status", "PROCESSED")
    assert contents() == before


@pytest.mark.django_db
def test_it_ends_with_an_error_when_something_failed(
    parked: list[WebhookEvent], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = processing._walk

    def walk(event: WebhookEvent, *args: Any) -> Any:
        return _break() if event.pk == parked[1].pk else real(event, *args)

    monkeypatch.setattr(processing, "_walk", walk)

    with pytest.raises(CommandError, match="1 of 3 failed"):
        _reprocess()
    assert _processed() == {"parked-0", "parked-2"}, "one that fails does not stop the others"


@pytest.mark.django_db
def test_what_still_waits_is_no_failure(monthly: Plan) -> None:
    _parked()
    assert "1 event(s). unlinked: 1" in _reprocess()


def _break(*_args: object, **_kwargs: object) -> Any:
    raise RuntimeError


@pytest.mark.django_db
def test_an_unknown_id_stops_it_before_anything_runs(parked: list[WebhookEvent]) -> None:
    nobody = uuid4()
    with pytest.raises(CommandError, match=f"no such event: {nobody}"):
        _reprocess(parked[0].pk, nobody)
    assert _processed() == set()


@pytest.mark.django_db
@pytest.mark.parametrize(
    "arguments",
    [
        ["not-a-uuid"],
        ["--status", "DONE"],
        ["--error-code", "OOPS"],
        ["--since", "yesterday"],
        ["--until", "13:00"],
        ["--limit", "0"],
        ["--limit", "-1"],
        ["--limit", "many"],
        ["--limit", "٣"],
        ["--no-such-option"],
    ],
)
def test_it_refuses_bad_arguments(parked: list[WebhookEvent], arguments: list[str]) -> None:
    with pytest.raises(CommandError):
        _reprocess(*arguments)
    assert _processed() == set()
