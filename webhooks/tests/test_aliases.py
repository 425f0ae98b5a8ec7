"""One charge told of under several names is one payment, applied once."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from django.db import transaction
from pytest_django import Settings

from billing.models import Fact, Grant, Payment, PaymentAlias
from subscriptions.models import Plan, Subscription, User
from tests.refusing import refused
from tests.sending import SECRET, deliver, paid, result
from webhooks import providers, review
from webhooks.audit import Actor
from webhooks.models import WebhookEvent
from webhooks.providers.tilda import Tilda

pytestmark = pytest.mark.django_db


class Second(Tilda):
    slug = "second"


@pytest.fixture
def second(monkeypatch: pytest.MonkeyPatch, settings: Settings) -> str:
    """Another provider's URL."""
    monkeypatch.setitem(providers._PROVIDERS, "second", Second)
    settings.WEBHOOK_SECRETS = {**settings.WEBHOOK_SECRETS, "SECOND": (SECRET,)}
    return "/webhooks/second"


def _names() -> set[tuple[str, str]]:
    return set(PaymentAlias.objects.values_list("system", "external_id"))


def _assert_applied_once() -> None:
    assert Payment.objects.count() == Grant.objects.count() == 1
    grant = Grant.objects.get()
    assert Subscription.objects.get().current_period_end == grant.ends_at
    assert Payment.objects.get().subscription_applied_at is not None
    assert not WebhookEvent.objects.exclude(status="PROCESSED").exists()


def test_a_payment_has_its_own_name(buyer: User, monthly: Plan) -> None:
    deliver(paid(external_payment_id="p"))

    assert _names() == {("tilda", "p")}


def test_several_names_of_one_charge_in_any_order(buyer: User, monthly: Plan) -> None:
    """As session, payment intent and invoice are: each event knows some of the names."""
    payloads = [
        paid(external_payment_id="session", aliases={"bank": "intent"}),
        paid(external_payment_id="intent-event", aliases={"bank": "intent", "shop": "invoice"}),
        paid(external_payment_id="session", aliases={"shop": "invoice"}),
        paid(external_payment_id="session"),
    ]
    for order in permutations(payloads):
        savepoint = transaction.savepoint()
        ends = [result(deliver(payload)) for payload in order]
        if Payment.objects.count() == 1:
            assert ends == [(200, "processed")] * 4
            _assert_applied_once()
            assert _names() == {
                ("tilda", "session"),
                ("tilda", "intent-event"),
                ("bank", "intent"),
                ("shop", "invoice"),
            }
        else:
            # Nothing joined the first two names when they came; who joins them is a person.
            joining = WebhookEvent.objects.filter(error_code="PAYMENTS_JOINED", review="OPEN")
            assert joining.exists()
        transaction.savepoint_rollback(savepoint)


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_one_charge_told_by_two_providers_is_applied_once(
    buyer: User, monthly: Plan, second: str, order: tuple[int, ...]
) -> None:
    """The shop's event names the bank's payment, which the bank tells of by itself."""
    told: list[tuple[dict[str, Any], str]] = [
        (paid(external_payment_id="shop-1", aliases={"second": "bank-1"}), "/webhooks/payments"),
        (paid(external_payment_id="bank-1"), second),
        (paid(external_payment_id="bank-1", aliases={"tilda": "shop-1"}), second),
    ]

    for number in order:
        payload, url = told[number]
        assert result(deliver(payload, url=url)) == (200, "processed")

    _assert_applied_once()
    assert _names() == {("tilda", "shop-1"), ("second", "bank-1")}
    assert Fact.objects.count() == 3


def test_the_same_id_at_two_providers_is_two_payments(
    buyer: User, monthly: Plan, second: str
) -> None:
    deliver(paid(external_payment_id="p"))
    deliver(paid(external_payment_id="p"), url=second)

    assert Payment.objects.count() == Grant.objects.count() == 2


@pytest.mark.parametrize("refund_first", [True, False])
def test_a_refund_under_another_name_takes_back(
    buyer: User, monthly: Plan, second: str, refund_first: bool
) -> None:
    calls = [
        (paid(external_payment_id="shop-1", aliases={"second": "bank-1"}), "/webhooks/payments"),
        (paid(external_payment_id="bank-1", status="refunded"), second),
    ]
    for payload, url in reversed(calls) if refund_first else calls:
        deliver(payload, url=url)

    assert Payment.objects.get().status == "REFUNDED"
    assert not Grant.objects.filter(revoked_at__isnull=True).exists()


def test_another_name_that_brings_the_email_finishes_what_was_parked(
    buyer: User, monthly: Plan, second: str
) -> None:
    deliver(paid(external_payment_id="bank-1", email=None), url=second)
    assert WebhookEvent.objects.get().error_code == "UNLINKED_PAYMENT"

    deliver(paid(external_payment_id="shop-1", aliases={"second": "bank-1"}))

    _assert_applied_once()


def test_a_fact_that_would_join_two_payments_changes_nothing(buyer: User, monthly: Plan) -> None:
    deliver(paid(external_payment_id="one", aliases={"bank": "b1"}))
    deliver(paid(external_payment_id="two", aliases={"bank": "b2"}))
    before = [
        list(model.objects.order_by("pk").values_list())
        for model in (Payment, PaymentAlias, Fact, Grant, Subscription)
    ]

    answer = deliver(
        paid(event_id="joins", external_payment_id="one", status="refunded", aliases={"bank": "b2"})
    )

    assert result(answer) == (200, "failed_final")
    event = WebhookEvent.objects.get(external_event_id="joins")
    assert (event.status, event.error_code, event.review) == (
        "FAILED_FINAL",
        "PAYMENTS_JOINED",
        "OPEN",
    )
    after = [
        list(model.objects.order_by("pk").values_list())
        for model in (Payment, PaymentAlias, Fact, Grant, Subscription)
    ]
    assert after == before


def test_the_database_itself_refuses_a_name_of_two_payments(buyer: User, monthly: Plan) -> None:
    deliver(paid(external_payment_id="one"))
    deliver(paid(external_payment_id="two"))
    two = Payment.objects.get(external_payment_id="two")

    with refused(by="alias_of_one_payment"):
        PaymentAlias.objects.create(system="tilda", external_id="one", payment=two)


@pytest.mark.parametrize(
    "aliases",
    [
        ["bank"],
        {"bank": ""},
        {"bank": 1.5},
        {"Bank!": "x"},
        {"bank": "x" * 256},
        {f"s{number}": "x" for number in range(11)},
    ],
)
def test_names_that_are_none_are_refused(buyer: User, monthly: Plan, aliases: Any) -> None:
    assert deliver(paid(aliases=aliases)).status_code == 400

    assert not Payment.objects.exists()
    assert not PaymentAlias.objects.exists()


def test_an_alias_in_our_own_namespace_is_refused(buyer: User, monthly: Plan) -> None:
    """Else a sender could put its own payment in the place of one that is yet to come."""
    answer = deliver(paid(external_payment_id="mine", aliases={"tilda": "of-somebody-else"}))

    assert result(answer) == (400, "MALFORMED")
    assert result(deliver(paid(external_payment_id="of-somebody-else"))) == (200, "processed")


def test_a_payment_that_a_release_without_aliases_made_is_known_by_its_own_name(
    buyer: User, monthly: Plan
) -> None:
    deliver(paid(event_id="e", external_payment_id="p", email=None))
    PaymentAlias.objects.all().delete()
    person = Actor("staff:anna", is_person=True)
    review.dismiss(WebhookEvent.objects.get(), person, "refunded there")

    deliver(paid(event_id="later", external_payment_id="p"))

    later = WebhookEvent.objects.get(external_event_id="later")
    assert later.error_code == "PAYMENT_DISMISSED"
    assert not Grant.objects.exists()
