"""What they say, correctly signed: threats 13 to 28. (23, 25, 26 and 27 are where the walk and
the answers are tested.)"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from billing.models import Grant, Payment
from subscriptions.models import Plan, Subscription, User
from tests.factories import PlanFactory, PlanPriceFactory, SubscriptionFactory
from tests.looking import effects
from tests.sending import deliver, paid, result, to_bytes
from webhooks.models import WebhookEvent

pytestmark = pytest.mark.django_db


def _with(literal: str, name: str = "comment") -> bytes:
    """A paid webhook with a field whose JSON is exactly this text."""
    return to_bytes(paid())[:-1] + f', "{name}": {literal}}}'.encode()


def _amount(literal: str, currency: str = "RUB") -> bytes:
    payload = to_bytes(paid(amount=None, currency=currency))
    return payload[:-1] + f', "amount": {literal}}}'.encode()


def _refused(body: bytes) -> None:
    assert result(deliver(body)) == (400, "MALFORMED")
    event = WebhookEvent.objects.get()
    assert (event.error_code, event.review) == ("MALFORMED", "OPEN")
    assert bytes(event.raw_body or b"") == body
    assert {**effects(), "events": 0} == dict.fromkeys(effects(), 0)


@pytest.mark.parametrize(
    ("literal", "shown"),
    [
        (r'"a\u0000b"', "a\ufffdb"),
        (r'"a\ud800b"', "a\ufffdb"),
        (r'"a\udc00\ud800b"', "a\ufffd\ufffdb"),
        (r'"a\ud83d\ude00b"', "a\U0001f600b"),
        (r'"a\\u0000b"', "a\\u0000b"),
        (r'"a\\\u0000b"', "a\\\ufffdb"),
        (r'{"\u0000": ["\u0000"]}', {"\ufffd": ["\ufffd"]}),
    ],
)
def test_13_what_jsonb_refuses_does_not_keep_a_payment_out(
    buyer: User, monthly: Plan, literal: str, shown: Any
) -> None:
    body = _with(literal)

    assert result(deliver(body)) == (200, "processed")

    event = WebhookEvent.objects.get()
    assert bytes(event.raw_body or b"") == body
    assert event.payload is not None
    assert event.payload["comment"] == shown


@pytest.mark.parametrize("email", ["a\u0000b@example.com", "a\ud800b@example.com"])
def test_13_an_address_that_cannot_be_stored_is_none(monthly: Plan, email: str) -> None:
    assert result(deliver(paid(email=email))) == (200, "unlinked")
    assert Payment.objects.get().email is None


@pytest.mark.parametrize("name", ["external_payment_id", "event_id", "plan_id", "merchant_uid"])
@pytest.mark.parametrize("value", ["a\u0000b", "\ud800"])
def test_13_an_id_that_cannot_be_stored_is_malformed(name: str, value: str) -> None:
    _refused(to_bytes(paid(**{name: value})))


@pytest.mark.parametrize(
    "literal", ["NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e-400", "1E+3000000"]
)
@pytest.mark.parametrize("name", ["amount", "comment"])
def test_15_numbers_that_are_none_are_refused(literal: str, name: str) -> None:
    _refused(_amount(literal) if name == "amount" else _with(literal))


@pytest.mark.parametrize("literal", ["9" * 5000, "-" + "9" * 5000, "0." + "1" * 5000])
@pytest.mark.parametrize("name", ["amount", "comment", "external_payment_id2"])
def test_16_endless_numbers_are_refused(literal: str, name: str) -> None:
    _refused(_amount(literal) if name == "amount" else _with(literal, name))


def test_16_endless_nesting_is_refused() -> None:
    _refused(_with("[" * 100_000 + "]" * 100_000))


@pytest.mark.parametrize(
    "body",
    [
        b'{"external_payment_id": "p", "status": "failed", "status": "paid"}',
        b'{"external_payment_id": "p", "status": "paid", "st\\u0061tus": "paid"}',
        b'{"external_payment_id": "p", "status": "paid", "x": {"a": 1, "a": 1}}',
        b'{"external_payment_id": "p", "status": "paid", "x": [{"a": 1, "a": 2}]}',
    ],
)
def test_18_the_same_key_twice_is_refused(body: bytes) -> None:
    _refused(body)


@pytest.mark.parametrize(
    "encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig", "cp1251", "utf-7"]
)
def test_19_only_plain_utf_8_is_read(encoding: str) -> None:
    body = '{"external_payment_id": "p", "status": "paid", "x": "ж"}'.encode(encoding)
    if encoding == "utf-7":  # ASCII, so it is UTF-8 too, and means just what it says.
        assert result(deliver(body)) == (200, "unlinked")
    else:
        _refused(body)


@pytest.mark.parametrize("literal", ['"1E+3000000"', "1E+3000000", '"1e3"', "1E+300", "1e-300"])
def test_21_an_astronomic_amount_is_refused_at_once(literal: str) -> None:
    _refused(_amount(literal))


@pytest.mark.parametrize(
    ("literal", "currency"),
    [
        ("true", "RUB"),
        ("false", "RUB"),
        ("-990", "RUB"),
        ('"-990"', "RUB"),
        ("0", "RUB"),
        ('"0.00"', "RUB"),
        ("-0.0", "RUB"),
        ("990.001", "RUB"),
        ('"990.001"', "RUB"),
        ("15900.5", "KRW"),
        ('"10.0001"', "KWD"),
        ('"٩٩٠"', "RUB"),
        ('"\uff19\uff19\uff10"', "RUB"),
        ('"990²"', "RUB"),
        ('" 990"', "RUB"),
        ('"990\\n"', "RUB"),
        ('"+990"', "RUB"),
        ('"1_000"', "RUB"),
        ('"9,90"', "RUB"),
        ('"990 RUB"', "RUB"),
        ('".5"', "RUB"),
        ('""', "RUB"),
        ('"NaN"', "RUB"),
        ('"Infinity"', "RUB"),
        ("[990]", "RUB"),
        ('{"value": 990}', "RUB"),
        ("1000000000000000", "RUB"),
    ],
)
def test_22_what_is_no_amount_is_refused(literal: str, currency: str) -> None:
    _refused(_amount(literal, currency))


@pytest.mark.parametrize(
    ("literal", "currency", "exactly"),
    [
        ("990.10", "RUB", "990.10"),
        ('"990.1"', "RUB", "990.1"),
        ("9.9e2", "RUB", "990"),
        ('"15900.00"', "KRW", "15900"),
        ("10.005", "KWD", "10.005"),
        # As a float this would be 999999999999.99 with noise behind it, or another cent.
        ("99999999999999.99", "RUB", "99999999999999.99"),
        ("0.1", "RUB", "0.1"),
    ],
)
def test_22_an_amount_is_kept_exactly(
    buyer: User, literal: str, currency: str, exactly: str
) -> None:
    price = PlanPriceFactory.create(
        plan=PlanFactory.create(is_default=True), amount=exactly, currency=currency
    )

    assert result(deliver(_amount(literal, currency))) == (200, "processed")
    assert Payment.objects.get().amount == Decimal(exactly) == Decimal(price.amount)


@pytest.mark.parametrize(
    "name", ["external_payment_id", "event_id", "event_type", "merchant_uid", "plan_id", "status"]
)
def test_24_an_id_has_at_most_255_characters(buyer: User, monthly: Plan, name: str) -> None:
    assert deliver(paid(**{name: "й" * 255})).status_code == 200
    assert result(deliver(paid(**{name: "й" * 256}))) == (400, "MALFORMED")


@pytest.mark.parametrize("name", ["external_payment_id", "status"])
@pytest.mark.parametrize("value", ["", " ", "\t\n", True, 1.5, [], {}])
def test_24_a_required_id_is_a_string_with_something_in_it(name: str, value: Any) -> None:
    _refused(to_bytes(paid(**{name: value})))


@pytest.mark.parametrize("other", ["Pay", "pay ", " pay", "pay\u200b", "\u0440ay"])
def test_24_ids_are_compared_exactly(buyer: User, monthly: Plan, other: str) -> None:
    deliver(paid(event_id="pay", external_payment_id="pay"))
    answer = deliver(paid(event_id=other, external_payment_id=other))

    assert result(answer) == (200, "processed")
    assert set(Payment.objects.values_list("external_payment_id", flat=True)) == {"pay", other}
    assert Grant.objects.count() == 2


def test_24_an_integer_is_its_decimal_digits(buyer: User, monthly: Plan) -> None:
    first = paid(event_id=1234567890123456789, external_payment_id=77)
    deliver(first)

    assert result(deliver({**first, "event_id": str(first["event_id"])})) == (200, "duplicate")
    assert result(deliver(paid(external_payment_id="77"))) == (200, "processed")
    assert Payment.objects.get().external_payment_id == "77"


def test_24_a_blank_event_id_is_none(buyer: User, monthly: Plan) -> None:
    for payload in (paid(event_id=""), paid(event_id=" ")):
        assert result(deliver(payload)) == (200, "processed")
    assert set(WebhookEvent.objects.values_list("external_event_id", flat=True)) == {None}


@pytest.mark.parametrize("character", ["x", "\x01", "\U000e0001", "'", "\n"])
def test_24_the_longest_plan_code_fits_into_what_we_write_about_it(
    buyer: User, monthly: Plan, character: str
) -> None:
    """Escaped for reading, one character may become ten."""
    assert result(deliver(paid(plan_id="x" + character * 254))) == (200, "failed_final")
    assert WebhookEvent.objects.get().error_code == "PLAN_UNKNOWN"


@pytest.mark.parametrize(
    ("end", "after"),
    [
        (datetime(2099, 1, 31, tzinfo=UTC), datetime(2099, 2, 28, tzinfo=UTC)),
        (datetime(2096, 1, 31, tzinfo=UTC), datetime(2096, 2, 29, tzinfo=UTC)),
        (datetime(2099, 12, 31, 23, 59, tzinfo=UTC), datetime(2100, 1, 31, 23, 59, tzinfo=UTC)),
    ],
)
def test_28_months_are_the_calendars(
    buyer: User, monthly: Plan, end: datetime, after: datetime
) -> None:
    SubscriptionFactory.create(user=buyer, current_period_end=end)
    deliver(paid())
    assert Subscription.objects.get().current_period_end == after


def test_28_a_period_that_no_date_can_hold_goes_to_review(buyer: User, monthly: Plan) -> None:
    end = datetime(9999, 12, 15, tzinfo=UTC)
    SubscriptionFactory.create(user=buyer, current_period_end=end)

    assert result(deliver(paid())) == (200, "failed_final")

    event = WebhookEvent.objects.get()
    assert (event.error_code, event.review) == ("PERIOD_OVERFLOW", "OPEN")
    assert Subscription.objects.get().current_period_end == end
    assert Payment.objects.get().subscription_applied_at is None


@pytest.mark.parametrize("name", ["paid_at", "occurred_at"])
@pytest.mark.parametrize(
    "moment",
    ["0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "2024-02-29", "2024-W09-4"],
)
def test_28_an_odd_date_is_never_an_error(
    buyer: User, monthly: Plan, name: str, moment: str
) -> None:
    assert deliver(paid(**{name: moment})).status_code == 200
    assert WebhookEvent.objects.get().error_code != "PROCESSING_ERROR"


@pytest.mark.parametrize("name", ["paid_at", "occurred_at"])
@pytest.mark.parametrize(
    "moment",
    [
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-14:00",
        "2023-02-29T00:00:00Z",
        "10000-01-01T00:00:00Z",
        "٢٠٢٤-01-01T00:00:00Z",
        "2024-01-01T00:00:00Z" + " " * 100,
        "now",
        20240101,
        True,
    ],
)
def test_28_what_is_no_date_is_refused(name: str, moment: Any) -> None:
    _refused(to_bytes(paid(**{name: moment})))


@pytest.mark.parametrize(("depth", "status"), [(60, 200), (70, 400), (945, 400), (100_000, 400)])
def test_nesting_has_a_limit_that_does_not_depend_on_the_callers_stack(
    buyer: User, monthly: Plan, depth: int, status: int
) -> None:
    whole = json.dumps(paid()).encode()
    body = whole[:-1] + b', "deep": ' + b"[" * depth + b"]" * depth + b"}"

    assert deliver(body).status_code == status
