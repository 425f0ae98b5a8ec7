"""When an unfinished event is looked at again. The clock is the database's."""

import random
from datetime import timedelta

from django.conf import settings
from django.db.models.expressions import CombinedExpression
from django.db.models.functions import Now

# After the 1st, 2nd, … failed attempt: three quick retries, then capped backoff.
RETRY_DELAYS_S = (5, 10, 20, 60, 300, 1200, 3600)
_WAIT_AT_LEAST_S, _WAIT_AT_MOST_S = 60, 3600


def after_failure(attempts: int) -> CombinedExpression:
    delay_s = RETRY_DELAYS_S[min(max(attempts, 1), len(RETRY_DELAYS_S)) - 1]
    return Now() + timedelta(seconds=_jittered(delay_s))


def after_parking(age: timedelta) -> CombinedExpression:
    """The longer it has waited the less often we look, but at least once an hour."""
    delay_s = min(max(age.total_seconds() / 10, _WAIT_AT_LEAST_S), _WAIT_AT_MOST_S)
    return Now() + timedelta(seconds=_jittered(delay_s))


def waited_too_long(age: timedelta) -> bool:
    return age > timedelta(days=settings.WEBHOOK_WAIT_FOR_USER_DAYS)


def exhausted(attempts: int) -> bool:
    return attempts >= settings.WEBHOOK_MAX_ATTEMPTS


def _jittered(delay_s: float) -> float:
    """So that what failed together does not come back together."""
    return delay_s * random.uniform(0.8, 1.2)  # noqa: S311
