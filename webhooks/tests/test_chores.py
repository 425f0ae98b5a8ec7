"""Leases, the expiry of subscriptions, and the sample of forged requests."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest
from django.db.models.functions import Now
from pytest_django import Settings

from subscriptions.expiry import expire
from subscriptions.models import Plan, Subscription, User
from tests.factories import SubscriptionFactory
from tests.looking import NOTHING, counted, database_parameters, effects, in_another_connection
from tests.sending import deliver, paid, result, send, to_bytes
from webhooks import tasks
from webhooks.forgeries import MAX_SAMPLE_BYTES, prune
from webhooks.leases import lease
from webhooks.models import AuditEntry, Lease, WebhookEvent

pytestmark = pytest.mark.django_db(transaction=True)
HOUR = timedelta(hours=1)


def test_of_two_takers_one_wins() -> None:
    with lease("job", seconds=60) as ours, lease("job", seconds=60) as theirs:
        assert (ours, theirs) == (True, False)
    with lease("job", seconds=60) as again:
        assert again


def test_losing_a_lease_does_not_end_the_winners() -> None:
    with lease("job", seconds=60):
        with lease("job", seconds=60) as second:
            assert not second
        with lease("job", seconds=60) as third:
            assert not third


def test_another_job_is_another_lease() -> None:
    with lease("job", seconds=60), lease("other", seconds=60) as other:
        assert other


def test_an_expired_lease_is_anybodys_and_its_old_holder_does_not_end_it() -> None:
    with lease("job", seconds=60) as first:
        assert first
        Lease.objects.update(expires_at=Now() - timedelta(seconds=1))
        with lease("job", seconds=60) as second:
            assert second
            taken_over = Lease.objects.get().holder
            Lease.objects.update(expires_at=Now() - timedelta(seconds=1))
            with lease("job", seconds=60) as third:
                assert third
            Lease.objects.create(job="job", holder=taken_over, expires_at=Now() + HOUR)
        assert not Lease.objects.exists()
        Lease.objects.create(job="job", holder=uuid4(), expires_at=Now() + HOUR)
    assert Lease.objects.exists(), "the first holder must not delete what is no longer its own"


def test_a_lease_ends_with_its_job_even_when_that_fails() -> None:
    with pytest.raises(RuntimeError), lease("job", seconds=60):
        raise RuntimeError
    assert not Lease.objects.exists()


def test_a_lease_is_seen_by_other_connections() -> None:
    def take() -> bool:
        with lease("job", seconds=60) as ours:
            return ours

    with lease("job", seconds=60):
        assert in_another_connection(take) is False
    assert in_another_connection(take) is True


@pytest.mark.parametrize("status", ["ACTIVE", "CANCELED"])
def test_a_subscription_whose_time_is_over_becomes_inactive(status: str) -> None:
    over = SubscriptionFactory.create(status=status, current_period_end=Now() - HOUR)
    running = SubscriptionFactory.create(status=status, current_period_end=Now() + HOUR)
    end = Subscription.objects.get(pk=over.pk).current_period_end

    tasks.expire_subscriptions_task()

    assert Subscription.objects.get(pk=over.pk).status == "INACTIVE"
    assert Subscription.objects.get(pk=over.pk).current_period_end == end
    assert Subscription.objects.get(pk=running.pk).status == status
    entry = AuditEntry.objects.get(action="subscription_expired")
    assert (entry.actor, entry.subscription_id) == ("schedule", over.pk)
    tasks.expire_subscriptions_task()
    assert AuditEntry.objects.count() == 1


def test_expiry_goes_on_until_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "EXPIRE_BATCH", 2)
    for _ in range(5):
        SubscriptionFactory.create(status="ACTIVE", current_period_end=Now() - HOUR)
    tasks.expire_subscriptions_task()
    assert not Subscription.objects.filter(status="ACTIVE").exists()


def test_expiry_runs_in_one_place_at_a_time() -> None:
    SubscriptionFactory.create(status="ACTIVE", current_period_end=Now() - HOUR)
    with lease("expire_subscriptions", seconds=60):
        tasks.expire_subscriptions_task()
    assert Subscription.objects.get().status == "ACTIVE"


def test_a_subscription_that_is_being_extended_does_not_expire() -> None:
    subscription = SubscriptionFactory.create(status="ACTIVE", current_period_end=Now() - HOUR)
    with psycopg.connect(**database_parameters()) as paying:
        paying.execute(
            "UPDATE subscriptions_subscription SET current_period_end = now() + interval '1 day'"
        )
        assert expire(limit=10) == [], "its row is locked right now"
        paying.commit()

    assert expire(limit=10) == [], "and now it has time again"
    subscription.refresh_from_db()
    assert subscription.status == "ACTIVE"


def test_an_expired_subscription_comes_back_by_a_payment(buyer: User, monthly: Plan) -> None:
    SubscriptionFactory.create(user=buyer, status="ACTIVE", current_period_end=Now() - HOUR)
    tasks.expire_subscriptions_task()
    assert result(deliver(paid())) == (200, "processed")
    assert Subscription.objects.get().status == "ACTIVE"


def _forge(times: int, source: str = "192.0.2.1") -> None:
    for _ in range(times):
        assert send(to_bytes(paid()), REMOTE_ADDR=source).status_code == 401


def _samples(**which: str) -> int:
    return WebhookEvent.objects.filter(signature_valid=False, **which).count()


def test_of_one_sources_forgeries_only_a_few_are_kept(settings: Settings) -> None:
    settings.WEBHOOK_FORGED_ROWS_PER_SOURCE = 3
    before = counted("webhook_invalid_signature_total", provider="tilda")

    _forge(60)

    assert _samples() == 3
    assert counted("webhook_invalid_signature_total", provider="tilda") == before + 60
    _forge(60, "192.0.2.2")
    assert _samples(source_ip="192.0.2.1") == 3
    assert 1 <= _samples(source_ip="192.0.2.2") <= 3


def test_of_all_forgeries_only_so_many_are_kept(
    settings: Settings, buyer: User, monthly: Plan
) -> None:
    settings.WEBHOOK_FORGED_ROWS_KEPT = 10
    settings.WEBHOOK_FORGED_ROWS_PER_SOURCE = 4
    for number in range(40):
        _forge(3, f"192.0.2.{number}")

    assert _samples() == 10
    assert effects() == NOTHING
    assert result(deliver(paid())) == (200, "processed"), "genuine ones are not capped"


def test_a_forged_sample_is_cut_to_size() -> None:
    body = to_bytes(paid(comment="x" * 100_000))
    send(body)
    sample = WebhookEvent.objects.get()
    assert bytes(sample.raw_body or b"") == body[:MAX_SAMPLE_BYTES]
    assert sample.payload is None


def test_old_samples_make_room_for_new_ones(settings: Settings, buyer: User, monthly: Plan) -> None:
    settings.WEBHOOK_FORGED_ROWS_PER_SOURCE = 1
    _forge(2)
    deliver(paid())
    WebhookEvent.objects.update(received_at=Now() - timedelta(days=7, minutes=-1))
    assert prune() == 0
    WebhookEvent.objects.update(received_at=Now() - timedelta(days=7, minutes=1))

    tasks.prune_forged_task()

    assert _samples() == 0
    assert WebhookEvent.objects.count() == 1, "genuine events stay"
    _forge(1)
    assert _samples() == 1


def test_pruning_runs_in_one_place_at_a_time() -> None:
    _forge(1)
    WebhookEvent.objects.update(received_at=Now() - timedelta(days=8))
    with lease("prune_forged", seconds=60):
        tasks.prune_forged_task()
    assert _samples() == 1
