"""Real inserts that PostgreSQL must refuse."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection
from django.utils import timezone

from billing.models import Fact, Grant, Payment
from subscriptions.models import Plan, Subscription, User
from tests.factories import SubscriptionFactory
from tests.refusing import definition, refused

pytestmark = pytest.mark.django_db
APPEND_ONLY = "23001"  # restrict_violation, raised by the trigger


def _payment(**fields: Any) -> Payment:
    fields = {"provider": "tilda", "external_payment_id": uuid4().hex, **fields}
    return Payment.objects.create(**fields)


def _fact(**fields: Any) -> Fact:
    fields = {
        "event_id": uuid4(),
        "event_key": "k",
        "reading": "r",
        "kind": "PAID",
        "received_at": timezone.now(),
        **fields,
    }
    if "payment" not in fields:
        fields["payment"] = _payment()
    return Fact.objects.create(**fields)


def _grant(**fields: Any) -> Grant:
    now = timezone.now()
    return Grant.objects.create(**{"starts_at": now, "ends_at": now, **fields})


def _set(table: str, column: str, value: str) -> None:
    """Past Django, which would not even send some of these."""
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {table} SET {column} = {value}")


def test_a_payment_is_unique_per_provider() -> None:
    _payment(external_payment_id="p")
    _payment(external_payment_id="p", provider="other")
    _payment(external_payment_id="P")
    _payment(external_payment_id="p ")
    with refused("payment_unique_per_provider"):
        _payment(external_payment_id="p")


def test_a_payments_status_is_a_known_one() -> None:
    for status in ("RECEIVED", "PROCESSING", "SUCCEEDED", "FAILED", "CANCELED", "REFUNDED"):
        _payment(status=status)
    for status in ("", "PAID", "succeeded"):
        with refused("payment_status_known"):
            _payment(status=status)


@pytest.mark.parametrize("value", ["'NaN'", "0", "-0.01"])
def test_an_amount_is_finite_and_positive(value: str) -> None:
    _payment()
    with refused("payment_amount_positive_and_finite"):
        _set("billing_payment", "amount", value)


@pytest.mark.parametrize("value", ["'Infinity'", "1e15"])
def test_an_amount_has_at_most_fifteen_digits(value: str) -> None:
    _payment()
    with refused("22003"):  # numeric_value_out_of_range: numeric(19,4) itself
        _set("billing_payment", "amount", value)


@pytest.mark.parametrize("value", ["'NaN'", "-0.01"])
def test_what_was_refunded_is_finite_and_not_negative(value: str) -> None:
    _payment()
    _set("billing_payment", "amount_refunded", "0")
    with refused("payment_amount_refunded_finite"):
        _set("billing_payment", "amount_refunded", value)


@pytest.mark.parametrize("value", ["rub", "RU", "", "R1B", "РУБ"])
def test_a_currency_is_three_capital_letters(value: str) -> None:
    _payment(currency="RUB")
    _payment(currency=None)
    with refused("payment_currency_code"):
        _payment(currency=value)


@pytest.mark.parametrize("name", ["external_payment_id", "provider_txn_id", "email"])
def test_an_id_is_null_but_never_blank(name: str) -> None:
    _payment(provider_txn_id=None, email=None)
    with refused("payment_ids_never_blank"):
        _payment(**{name: ""})


def test_what_is_applied_is_applied_to_somebody(buyer: User) -> None:
    subscription = SubscriptionFactory.create(user=buyer)
    now = timezone.now()
    _payment(subscription_applied_at=now, user=buyer, subscription=subscription)
    for nobody in ({"subscription": subscription}, {}):
        with refused("payment_applied_to_somebody"):
            _payment(subscription_applied_at=now, **nobody)


def test_a_facts_kind_is_a_known_one() -> None:
    with refused("fact_kind_known"):
        _fact(kind="SUCCEEDED")


@pytest.mark.parametrize("value", ["NaN", "0", "-1"])
def test_a_facts_amount_is_finite_and_positive(value: str) -> None:
    payment = _payment()
    with refused("fact_amount_positive_and_finite"), connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO billing_fact (event_id, event_key, reading, payment_id, kind, amount,"
            " received_at, live) VALUES (%s, 'k', 'r', %s, 'PAID', %s::numeric, now(), true)",
            [uuid4(), payment.pk, value],
        )


def test_what_a_fact_says_was_refunded_is_not_negative() -> None:
    _fact(amount_refunded=0)
    with refused("fact_amount_refunded_finite"):
        _fact(amount_refunded=-1)


def test_facts_are_append_only() -> None:
    _fact(email="buyer@example.com")
    for change in ({"kind": "FAILED"}, {"amount": 1}, {"email": "x@example.com"}, {"live": False}):
        with refused(APPEND_ONLY):
            Fact.objects.update(**change)
    with refused(APPEND_ONLY):
        Fact.objects.update(email=None, kind="FAILED")
    with refused(APPEND_ONLY):
        Fact.objects.all()._raw_delete("default")
    assert Fact.objects.count() == 1


def test_only_the_address_in_a_fact_can_be_erased() -> None:
    _fact(email="buyer@example.com")
    Fact.objects.update(email=None)
    assert Fact.objects.get().email is None
    with refused(APPEND_ONLY):
        Fact.objects.update(email="buyer@example.com")


def test_a_payment_has_one_grant(buyer: User, monthly: Plan) -> None:
    """The database's own proof of exactly-once."""
    subscription = Subscription.objects.create(user=buyer)
    payment = _payment()
    _grant(payment=payment, subscription=subscription, plan=monthly)
    with refused("billing_grant_payment_id_key"):
        _grant(payment=payment, subscription=subscription, plan=monthly)


def test_a_grant_does_not_end_before_it_starts(buyer: User, monthly: Plan) -> None:
    start = datetime(2024, 1, 1, tzinfo=UTC)
    with refused("grant_ends_after_start"):
        _grant(
            payment=_payment(),
            subscription=Subscription.objects.create(user=buyer),
            plan=monthly,
            starts_at=start,
            ends_at=start - timedelta(seconds=1),
        )


@pytest.mark.parametrize(
    ("index", "parts"),
    [
        ("payment_user_newest", ["(user_id, created_at DESC)"]),
        ("payment_status", ["(status)"]),
        ("payment_email_lower", ["(lower((email)::text))"]),
        ("payment_unlinked", ["(created_at)", "'SUCCEEDED'", "user_id IS NULL"]),
        (
            "payment_succeeded_not_applied",
            ["(created_at)", "'SUCCEEDED'", "subscription_applied_at IS NULL"],
        ),
        ("grant_subscription_start", ["(subscription_id, starts_at)"]),
    ],
)
def test_what_is_looked_for_is_indexed(index: str, parts: list[str]) -> None:
    for part in parts:
        assert part in definition(index)
