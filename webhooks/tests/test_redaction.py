"""manage.py redact_customer."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.contrib.admin.models import CHANGE, LogEntry
from django.core.management import CommandError
from django.db.models.functions import Now

from billing.fold import fold
from billing.models import Fact, Grant, OutboxMessage, Payment, Wallet
from billing.outbox.snapshots import payment_snapshot
from subscriptions.models import Plan, Subscription, User
from tests.factories import StaffFactory, UserFactory
from tests.looking import contents
from tests.people import ANNA
from tests.sending import deliver, paid, result
from webhooks import archive as archives
from webhooks import redaction, review
from webhooks.archive import clearing
from webhooks.models import AuditEntry, WebhookEvent
from webhooks.tests.archiving import archive, data_files, documents, old_event, run_command

pytestmark = pytest.mark.django_db

EMAIL = "buyer@example.com"


@pytest.fixture(autouse=True)
def folder(settings: Any, tmp_path: Path) -> Path:
    settings.ARCHIVE_DIR = tmp_path / "archive"
    return tmp_path / "archive"


@pytest.fixture
def gone(buyer: User, monthly: Plan) -> User:
    """A customer whose subscription is over: one event is archived, one is not."""
    old_event(event_id="archived", email="Buyer@Example.com")
    archive()
    old_event(event_id="kept", days=50)
    old_event(event_id="failed", status="failed", days=50)
    Subscription.objects.update(status="INACTIVE", current_period_end=Now() - timedelta(days=1))
    return buyer


def _redact(*arguments: object, email: str = EMAIL, reason: str = "asked by letter") -> str:
    return run_command("redact_customer", "--email", email, "--reason", reason, *arguments)


def _everything(folder: Path) -> str:
    return repr((contents(), documents(folder), list(LogEntry.objects.values()))).lower()


def _money_and_outcomes() -> list[list[Any]]:
    events = WebhookEvent.objects.values_list("pk", "payload_hash", "status", "error_code")
    payments = Payment.objects.values_list("pk", "user_id", "amount", "status", "plan_id")
    return [list(rows.order_by("pk")) for rows in (events, payments, Grant.objects.values_list())]


def test_nothing_of_the_person_is_left_and_all_of_the_money(gone: User, folder: Path) -> None:
    LogEntry.objects.log_actions(
        StaffFactory.create().pk, [gone], CHANGE, change_message="x", single_object=True
    )
    before = _money_and_outcomes()

    told = _redact()

    assert "payments: 3, facts: 3, events: 3, archived events: 1" in told
    assert _money_and_outcomes() == before
    assert EMAIL not in _everything(folder)
    (line,) = documents(folder)
    assert line.keys() == {"id", "provider", "payload_hash", "received_at", "redacted"}
    assert "0 problem(s)" in run_command("verify_archive")
    for payment in Payment.objects.all():
        assert fold(payment.facts.all()).status == payment.status
        assert payment.email is None
    gone.refresh_from_db()
    assert gone.email == f"redacted-{gone.pk}@redacted.invalid"
    assert not gone.has_usable_password()
    assert not gone.is_active


def test_it_says_so_in_the_audit_log_without_the_e_mail(gone: User) -> None:
    _redact()

    began, done = AuditEntry.objects.filter(action="customer_redacted").order_by("pk")
    assert (began.details["step"], done.details["step"]) == ("began", "done")
    for entry in (began, done):
        assert (entry.user_id, entry.reason) == (gone.pk, "asked by letter")
        assert entry.actor.startswith("cli:")
        assert entry.details["events"] == 3
    with pytest.raises(CommandError, match="must not hold the e-mail"):
        _redact(reason=f"{EMAIL.upper()} wrote to us")


def test_messages_to_others_do_not_hold_it(gone: User) -> None:
    payment = Payment.objects.filter(email=EMAIL).first()
    assert payment is not None
    assert EMAIL not in repr(payment_snapshot(payment)).lower()
    assert EMAIL not in repr(list(OutboxMessage.objects.values())).lower()


def test_a_second_run_has_nothing_to_do(gone: User, folder: Path) -> None:
    _redact()
    before, files = contents(), [path.read_bytes() for path in data_files(folder)]

    assert "nothing is kept under this e-mail" in _redact()

    assert contents() == before
    assert [path.read_bytes() for path in data_files(folder)] == files


def test_a_dry_run_erases_nothing(gone: User, folder: Path) -> None:
    before, lines = contents(), documents(folder)

    assert "there is: user" in _redact("--dry-run")

    assert (contents(), documents(folder)) == (before, lines)


@pytest.mark.parametrize("event_id", ["archived", "failed"])
def test_an_erased_event_cannot_be_processed_again(gone: User, event_id: str) -> None:
    _redact()
    event = WebhookEvent.objects.get(external_event_id=event_id)
    WebhookEvent.objects.filter(pk=event.pk).update(status="IGNORED")
    event.refresh_from_db()
    before = contents()

    outcome = review.reprocess(event, ANNA, "")

    assert outcome.result == "failed_retryable"
    assert (outcome.message or "").startswith("EventRedacted: ")
    assert contents() == before
    with pytest.raises(archives.EventRedacted):
        archives.read(event)


def test_a_duplicate_of_an_erased_event_is_still_a_duplicate(gone: User) -> None:
    kept = WebhookEvent.objects.filter(payload__isnull=False).values_list("payload", flat=True)
    payloads: list[Any] = list(kept)
    assert payloads
    _redact()

    for payload in payloads:
        assert result(deliver(payload)) == (200, "duplicate")

    assert not WebhookEvent.objects.filter(raw_body__isnull=False).exists()


def test_what_comes_later_finds_the_payment_linked(gone: User) -> None:
    payment = Payment.objects.get(facts__event_key="tilda:kept")
    _redact()

    refund = paid(external_payment_id=payment.external_payment_id, status="refunded", email=None)
    assert deliver(refund).status_code == 200

    payment.refresh_from_db()
    assert (payment.status, payment.user_id) == ("REFUNDED", gone.pk)


def test_parked_events_are_named_and_nothing_is_erased(monthly: Plan, folder: Path) -> None:
    parked = old_event()
    assert parked.status == "FAILED_RETRYABLE"
    before = contents()

    for force in ([], ["--force"]):
        with pytest.raises(CommandError, match=str(parked.pk)):
            _redact(*force)
        with pytest.raises(CommandError, match=str(parked.pk)):
            _redact("--dry-run", *force)

    assert contents() == before


def test_events_in_review_are_named_too(buyer: User, monthly: Plan) -> None:
    event = old_event(amount="1")

    with pytest.raises(CommandError, match=str(event.pk)):
        _redact()

    review.dismiss(event, ANNA, "refunded by hand")
    with pytest.raises(CommandError, match="was not applied"):
        _redact()
    _redact("--force")
    assert Payment.objects.get().email is None


def test_a_running_subscription_or_money_takes_force(gone: User) -> None:
    Subscription.objects.update(status="CANCELED", current_period_end=Now() + timedelta(days=1))
    with pytest.raises(CommandError, match="still running"):
        _redact()
    Subscription.objects.update(status="ACTIVE")
    with pytest.raises(CommandError, match="still running"):
        _redact()
    Subscription.objects.update(status="INACTIVE")
    Wallet.objects.create(user=gone, currency="RUB", balance=1)
    with pytest.raises(CommandError, match="money in the wallet"):
        _redact()
    assert AuditEntry.objects.filter(action="customer_redacted").count() == 0

    _redact("--force")

    assert Wallet.objects.get().balance == 1
    assert AuditEntry.objects.filter(details__forced=True).count() == 2


def test_staff_are_not_erased(monthly: Plan) -> None:
    StaffFactory.create(email="anna@example.com")

    with pytest.raises(CommandError, match="staff"):
        _redact("--force", email="anna@example.com")


def test_others_keep_what_is_theirs(gone: User, folder: Path) -> None:
    other = UserFactory.create(email="other@example.com")
    mixed = old_event(event_id="others", email="other@example.com", days=100)
    archive()
    (_own, theirs) = documents(folder)

    _redact()

    other.refresh_from_db()
    assert other.email == "other@example.com"
    assert documents(folder)[1] == theirs
    assert archives.read(mixed).payload["email"] == "other@example.com"
    assert Payment.objects.get(user=other).email == "other@example.com"


def test_who_paid_for_somebody_else_is_erased_from_that_payment_alone(monthly: Plan) -> None:
    """Staff linked what was paid under another address."""
    friend = UserFactory.create(email="friend@example.com")
    event = old_event(event_id="gift", email="payer@example.com")
    own = old_event(event_id="own", email="friend@example.com")
    review.link(Payment.objects.get(facts__event_id=event.pk), friend, ANNA, "they wrote")

    _redact(email="payer@example.com")

    gift = Payment.objects.get(facts__event_id=event.pk)
    assert (gift.email, gift.user, gift.status) == (None, friend, "SUCCEEDED")
    own.refresh_from_db()
    assert own.raw_body is not None
    friend.refresh_from_db()
    assert friend.email == "friend@example.com"


def test_a_killed_run_is_simply_run_again(
    gone: User, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(redaction, "_redact_rows", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            _redact()
    # The files are through, the rows are not: the e-mail still leads there.
    assert (documents(folder)[0].get("redacted"), Fact.objects.exclude(email=None).count()) == (
        True,
        3,
    )

    _redact()

    assert EMAIL not in _everything(folder)


def test_a_file_that_a_killed_archiver_left_does_not_keep_it(
    gone: User, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was written and verified, but its rows were not cleared: they hold it as well."""
    with monkeypatch.context() as broken:
        broken.setattr(clearing, "_clear", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            archive("--older-than", "30d")
    assert len(documents(folder)) == 3

    _redact()

    assert EMAIL not in _everything(folder)
    assert "0 problem(s)" in run_command("verify_archive")


def test_what_comes_in_meanwhile_is_erased_as_well(
    gone: User, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    erase = redaction._redact_rows
    known = Payment.objects.get(facts__event_key="tilda:kept").external_payment_id
    late = iter([paid(event_id="late", external_payment_id=known, status="disputed")])

    def deliver_first(*args: Any) -> bool:
        if payload := next(late, None):
            deliver(payload)
            WebhookEvent.objects.filter(external_event_id="late").update(review="RESOLVED")
        return erase(*args)

    monkeypatch.setattr(redaction, "_redact_rows", deliver_first)

    assert "events: 4" in _redact()

    assert EMAIL not in _everything(folder)
