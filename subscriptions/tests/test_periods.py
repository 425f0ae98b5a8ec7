from datetime import UTC, datetime, timedelta, timezone

import pytest

from subscriptions.models import Plan
from subscriptions.periods import PeriodOverflow, end_of_period


@pytest.mark.parametrize(
    ("start", "count", "unit", "end"),
    [
        ("2023-01-31", 1, "MONTH", "2023-02-28"),
        ("2024-01-31", 1, "MONTH", "2024-02-29"),
        ("2024-02-29", 1, "MONTH", "2024-03-29"),
        ("2024-01-31", 2, "MONTH", "2024-03-31"),
        ("2024-10-31", 1, "MONTH", "2024-11-30"),
        ("2024-12-31", 1, "MONTH", "2025-01-31"),
        ("2024-01-31", 13, "MONTH", "2025-02-28"),
        ("2024-02-29", 1, "YEAR", "2025-02-28"),
        ("2024-02-29", 4, "YEAR", "2028-02-29"),
        ("2023-02-28", 1, "YEAR", "2024-02-28"),
        ("2024-02-28", 2, "DAY", "2024-03-01"),
        ("2023-02-28", 1, "DAY", "2023-03-01"),
        ("2024-01-01", 366, "DAY", "2025-01-01"),
        ("9999-11-30", 1, "MONTH", "9999-12-30"),
    ],
)
def test_a_period_is_by_the_calendar(start: str, count: int, unit: str, end: str) -> None:
    plan = Plan(period_count=count, period_unit=unit)
    moment = datetime.fromisoformat(f"{start}T23:59:59+00:00")
    assert end_of_period(moment, plan) == datetime.fromisoformat(f"{end}T23:59:59+00:00")


def test_the_calendar_is_that_of_utc() -> None:
    """In Moscow it is the 1st of February already, in UTC still the 31st of January."""
    moscow = timezone(timedelta(hours=3))
    start = datetime(2023, 2, 1, 1, tzinfo=moscow)
    end = end_of_period(start, Plan(period_count=1, period_unit="MONTH"))
    assert end == datetime(2023, 2, 28, 22, tzinfo=UTC)
    assert end.utcoffset() == timedelta(0)


@pytest.mark.parametrize(("count", "unit"), [(1, "DAY"), (1, "MONTH"), (1, "YEAR"), (1200, "YEAR")])
def test_what_no_date_can_hold_is_said_so(count: int, unit: str) -> None:
    start = datetime(9999, 12, 31, 12, tzinfo=UTC)
    with pytest.raises(PeriodOverflow):
        end_of_period(start, Plan(period_count=count, period_unit=unit))
