"""Dead letters and poison messages in the back office, and the gauges that say there are some."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest
from django.contrib.auth.models import Permission
from prometheus_client.parser import text_string_to_metric_families
from pytest_django import Settings

from billing.models import OutboxDelivery, OutboxTarget, Payment, PoisonMessage
from billing.outbox.dispatching import dispatch
from billing.outbox.sinks import Refused
from subscriptions.models import User
from tests.asking import asked, body
from tests.factories import StaffFactory, UserFactory
from tests.telling import Memory, in_order, statuses, target, tell
from webhooks import metrics
from webhooks.models import AuditEntry
from webhooks.tests.test_admin import Staff, _messages

pytestmark = pytest.mark.django_db

CRM = target("crm")


@pytest.fixture(autouse=True)
def one_target(settings: Settings) -> None:
    settings.OUTBOX_TARGETS = (CRM,)
    settings.OUTBOX_MAX_ATTEMPTS = 1


@pytest.fixture
def staff() -> Staff:
    return Staff(StaffFactory.create(email="staff@example.com"))


@pytest.fixture
def dead() -> OutboxDelivery:
    """The first of three messages about one payment."""
    tell(uuid4(), 3)
    dispatch(CRM, Memory(lambda _: Refused("HTTP 400")))
    return OutboxDelivery.objects.get(status="DEAD")


def poison(**fields: object) -> PoisonMessage:
    buyer_to_be = UUID(int=77)
    said = {**asked(User(pk=buyer_to_be)), **fields}
    return PoisonMessage.objects.create(
        source="redis", position="stream/1", body=body(said), error="NoSuchUser: nobody"
    )


def audited() -> AuditEntry:
    return AuditEntry.objects.get()


def test_a_dead_letter_is_resent_and_those_behind_it_follow(staff: Staff, dead: OutboxDelivery):
    page = staff.act("billing_outboxdelivery", "resend", dead, reason="they mended it")
    assert "done" in _messages(page)

    sink = Memory()
    assert dispatch(CRM, sink) == {"delivered": 3}
    assert in_order(sink.seen)
    entry = audited()
    assert (entry.action, entry.actor) == ("message_resent", f"staff:{staff.user.pk}")
    assert entry.reason == "they mended it"
    assert entry.details["message_id"] == str(dead.message_id)
    assert entry.details["target"] == "crm"


def test_a_dead_letter_is_skipped_and_those_behind_it_go(staff: Staff, dead: OutboxDelivery):
    staff.act("billing_outboxdelivery", "skip", dead, reason="they do not need it")
    sink = Memory()
    assert dispatch(CRM, sink) == {"delivered": 2}
    assert [message.seq for message in sink.got] == [2, 3]
    assert statuses() == ["SKIPPED", "DELIVERED", "DELIVERED"]
    assert audited().action == "message_skipped"


@pytest.mark.parametrize("action", ["resend", "skip"])
def test_a_double_click_and_what_is_not_dead_change_nothing(
    staff: Staff, dead: OutboxDelivery, action: str
):
    for _ in range(2):
        page = staff.act("billing_outboxdelivery", action, dead, reason="x")
    assert "Only a dead letter" in _messages(page)
    waiting = OutboxDelivery.objects.filter(target="crm", status="PENDING").last()
    staff.act("billing_outboxdelivery", action, waiting, reason="x")
    assert AuditEntry.objects.count() == 1


def test_a_reason_is_asked_for(staff: Staff, dead: OutboxDelivery):
    staff.act("billing_outboxdelivery", "resend", dead, reason="")
    assert OutboxDelivery.objects.filter(status="DEAD").exists()
    assert not AuditEntry.objects.exists()


def test_only_those_who_may_decide_are_offered_it(dead: OutboxDelivery):
    kept = poison()
    viewer = UserFactory.create(is_staff=True)
    names = ("view_outboxdelivery", "view_poisonmessage")
    viewer.user_permissions.set(Permission.objects.filter(codename__in=names))
    person = Staff(viewer)
    assert person.get("billing_outboxdelivery_changelist").status_code == 200
    assert person.get("billing_poisonmessage_change", kept.pk).status_code == 200
    person.act("billing_outboxdelivery", "resend", dead, reason="x")
    person.act("billing_poisonmessage", "dismiss", kept, reason="x")
    assert not AuditEntry.objects.exists()


def test_the_list_shows_dead_letters_unless_asked_otherwise(staff: Staff, dead: OutboxDelivery):
    def shown(**query: str) -> int:
        page = staff.get("billing_outboxdelivery_changelist", **query)
        return len(page.context["cl"].result_list)

    assert shown() == 1
    assert shown(status="PENDING", target="crm") == 2
    assert shown(status="all") == 6
    assert shown(status="all", q=str(dead.key)) == 6
    assert shown(status="all", q="not an id") == 0


def test_a_rows_page_shows_its_tries_and_what_it_says(staff: Staff, dead: OutboxDelivery):
    page = staff.get("billing_outboxdelivery_change", dead.pk).content.decode()
    assert "HTTP 400" in page
    assert "PaymentLinked" in page


def test_what_a_poison_message_says_is_escaped(staff: Staff):
    kept = poison(provider="<script>alert(1)</script>")
    page = staff.get("billing_poisonmessage_change", kept.pk).content.decode()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def test_a_poison_message_is_retried_once_what_was_missing_is_there(staff: Staff):
    kept = poison()
    page = staff.act("billing_poisonmessage", "retry", kept, reason="try")
    assert "still cannot be taken: NoSuchUser" in _messages(page)
    kept.refresh_from_db()
    assert kept.review == "OPEN"
    assert not AuditEntry.objects.exists()

    UserFactory.create(pk=UUID(int=77))
    for _ in range(2):
        staff.act("billing_poisonmessage", "retry", kept, reason="the user is there now")
    kept.refresh_from_db()
    assert kept.review == "RESOLVED"
    assert Payment.objects.count() == 1
    entry = audited()
    assert (entry.action, entry.details["result"]) == ("poison_retried", "initiated")


def test_a_poison_message_is_dismissed(staff: Staff):
    kept = poison()
    UserFactory.create(pk=UUID(int=77))
    staff.act("billing_poisonmessage", "dismiss", kept, reason="a test of theirs")
    page = staff.act("billing_poisonmessage", "retry", kept, reason="or not")
    assert "not open any more" in _messages(page)
    assert not Payment.objects.exists()
    assert audited().action == "poison_dismissed"


def test_gauges_say_what_waits_per_target(dead: OutboxDelivery):
    poison()
    OutboxTarget.objects.filter(name="crm").update(open_until="2999-01-01T00:00:00Z")
    OutboxDelivery.objects.filter(pk=dead.pk).update(target="gone")
    text = metrics.exposition()[0].decode()
    found = {
        (sample.name, sample.labels.get("target")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name.startswith("outbox_")
    }
    assert found["outbox_pending", "crm"] == 2
    assert found["outbox_pending", "read-model"] == 3
    assert found["outbox_dead", "crm"] == 0
    assert found["outbox_breaker_open", "crm"] == 1
    assert found["outbox_breaker_open", "read-model"] == 0
    assert found["outbox_oldest_pending_seconds", "crm"] >= 0
    assert found["outbox_poison_open", None] == 1
    assert {label for _, label in found} == {"crm", "read-model", None}
