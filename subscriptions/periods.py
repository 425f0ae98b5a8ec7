"""How long a plan lasts, by the calendar, in UTC."""

from datetime import UTC, datetime

from dateutil.relativedelta import relativedelta

from subscriptions.models import PeriodUnit, Plan


class PeriodOverflow(Exception):
    """The period would end after the last date there is."""


def end_of_period(start: datetime, plan: Plan) -> datetime:
    """31 January + 1 month is the last day of February; 29 February + 1 year is 28 February."""
    count = plan.period_count
    length = {
        PeriodUnit.DAY: relativedelta(days=count),
        PeriodUnit.MONTH: relativedelta(months=count),
        PeriodUnit.YEAR: relativedelta(years=count),
    }[PeriodUnit(plan.period_unit)]
    try:
        return start.astimezone(UTC) + length
    except (OverflowError, ValueError) as error:
        raise PeriodOverflow(f"{count} {plan.period_unit} after {start:%Y-%m-%d}") from error
