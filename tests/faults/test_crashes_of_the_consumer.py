"""kill -9 of the consumer of PaymentInitiated: each payment is made once, none is lost."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from uuid import uuid4

import pytest
from django.conf import settings
from redis import Redis

from billing.models import Payment, PoisonMessage, Reservation, Wallet
from subscriptions.models import User
from tests.asking import asked, body, wallet_with
from tests.faults import children, outbox_jobs
from tests.faults.kill_points import AFTER_COMMIT
from tests.faults.outbox_jobs import AFTER_DONE, BEFORE_DONE

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def redis() -> Iterator[Redis]:
    with Redis.from_url(settings.REDIS_URL) as client:
        yield client


def test_each_payment_is_made_once_when_the_consumer_is_killed_at_any_point(
    redis: Redis, buyer: User
):
    wallet = wallet_with(buyer, 1_000_000)
    stream = f"asked-{uuid4()}"

    def ask() -> str:
        said = asked(buyer, amount="10", wallet=str(wallet.pk))
        redis.xadd(stream, {"data": body(said)})
        return str(said["payment_id"])

    ask()
    points = children.start(outbox_jobs.consume_until_killed, stream, None).result()
    assert points[-2:] == [BEFORE_DONE, AFTER_DONE]
    # It is acknowledged after the commit, never before.
    assert points.index(AFTER_COMMIT) < points.index(BEFORE_DONE)
    assert len(points) > 8
    for number, point in enumerate(points, 1):
        payment_id = ask()
        killed = children.start(outbox_jobs.consume_until_killed, stream, number)
        assert killed.exit_code() == -signal.SIGKILL, point

        children.start(outbox_jobs.consume_until_killed, stream, None).result()

        assert Payment.objects.filter(pk=payment_id, status="PROCESSING").count() == 1, point
        assert Reservation.objects.filter(payment_id=payment_id).count() == 1, point
        assert redis.xpending(stream, settings.CONSUME_GROUP)["pending"] == 0, point
    payments = Payment.objects.count()
    assert payments == len(points) + 1
    assert Wallet.objects.get().reserved == 10 * payments
    assert not PoisonMessage.objects.exists()
    redis.delete(stream)
