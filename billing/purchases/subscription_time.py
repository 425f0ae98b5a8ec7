"""Time of a subscription. Live grants of one subscription lie one behind the other."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from uuid import UUID

from django.db.models import Max, QuerySet

from billing.codes import ErrorCode
from billing.models import Grant, Purchase
from billing.policies import Objection
from billing.purchases.base import Act, Bargain, Effect
from subscriptions.extending import extend, lock_end, move_end
from subscriptions.periods import PeriodOverflow


def give(bargain: Bargain) -> Effect | Objection:
    user_id, plan = bargain.payment.user_id, bargain.plan
    if user_id is None or plan is None:
        raise ValueError("a bargain about time needs a user and a plan")
    try:
        extension = extend(user_id=user_id, plan=plan, now=bargain.now)
    except PeriodOverflow as overflow:
        return Objection(ErrorCode.PERIOD_OVERFLOW, str(overflow))
    return Effect(
        act=Act.GAVE,
        kind=Purchase.SUBSCRIPTION,
        subscription_id=extension.subscription_id,
        starts_at=extension.starts_at,
        ends_at=extension.ends_at,
        end_before=extension.end_before,
        end_after=extension.ends_at,
    )


def take_back(grant: Grant, now: datetime) -> Effect:
    """Used time stays used: what is cut is what lies ahead."""
    starts_at, ends_at = _period(grant)
    return _cut(grant, max(starts_at, min(now, ends_at)), now, Act.TOOK_BACK)


def shorten(grant: Grant, part: Decimal, now: datetime) -> Effect:
    starts_at, ends_at = _period(grant)
    length = grant.length or ends_at - starts_at
    by = timedelta(seconds=round(length.total_seconds() * float(part)))
    used_until = max(starts_at, min(now, ends_at))
    if by >= timedelta(0):
        return _cut(grant, max(used_until, ends_at - by), now, Act.SHORTENED)
    return _lengthen(grant, -by, now)


def reinstate(grant: Grant, now: datetime) -> Effect:
    """The same grant, as long as what was taken from it, behind all that the customer has now."""
    return _lengthen(grant, grant.unused or timedelta(0), now)


def _cut(grant: Grant, ends_at: datetime, now: datetime, act: Act) -> Effect:
    subscription_id, end_before = _locked(grant)
    _, end = _period(grant)
    revoked = act is Act.TOOK_BACK
    grant.ends_at = ends_at
    grant.unused = end - ends_at if revoked else None
    if ends_at < end:  # It ends in the future, so all that lies behind it does.
        _move_up(_behind(grant, end), to=ends_at)
    others = _live(subscription_id).exclude(pk=grant.pk).aggregate(end=Max("ends_at"))["end"]
    ends = [moment for moment in (others, None if revoked else ends_at) if moment]
    end_after = max(ends, default=min(ends_at, end_before))
    move_end(subscription_id, to=end_after, now=now)
    return _effect(grant, act, end_before, end_after)


def _lengthen(grant: Grant, by: timedelta, now: datetime) -> Effect:
    subscription_id, end_before = _locked(grant)
    starts_at, ends_at = _period(grant)
    if grant.revoked_at is None and ends_at >= now:
        grant.ends_at = ends_at + by
        end_after = max(end_before, _move_up(_behind(grant, ends_at), to=grant.ends_at))
    else:
        # What was used of it is over; the rest cannot lie in the past.
        begin = max(end_before, now)
        grant.starts_at = starts_at if ends_at == begin else begin
        grant.ends_at = end_after = begin + by
    grant.unused = None
    move_end(subscription_id, to=end_after, now=now)
    return _effect(grant, Act.REINSTATED, end_before, end_after)


def _move_up(grants: list[Grant], *, to: datetime) -> datetime:
    """Each keeps its length and follows the one before it; returns the end of the last."""
    for grant in grants:
        starts_at, ends_at = _period(grant)
        end = to + (ends_at - starts_at)
        Grant.objects.filter(pk=grant.pk).update(starts_at=to, ends_at=end)
        to = end
    return to


def _behind(grant: Grant, end: datetime) -> list[Grant]:
    return list(_live(grant.subscription_id).filter(starts_at__gte=end).exclude(pk=grant.pk))


def _live(subscription_id: UUID | None) -> QuerySet[Grant]:
    live = Grant.objects.filter(subscription=subscription_id, revoked_at__isnull=True)
    return live.order_by("starts_at", "ends_at", "pk")


def _locked(grant: Grant) -> tuple[UUID, datetime]:
    if grant.subscription_id is None:
        raise ValueError("this grant is not of a subscription")
    return grant.subscription_id, lock_end(grant.subscription_id)


def _period(grant: Grant) -> tuple[datetime, datetime]:
    if grant.starts_at is None or grant.ends_at is None:
        raise ValueError("this grant has no period")
    return grant.starts_at, grant.ends_at


def _effect(grant: Grant, act: Act, end_before: datetime, end_after: datetime) -> Effect:
    return Effect(
        act=act,
        kind=Purchase.SUBSCRIPTION,
        subscription_id=grant.subscription_id,
        starts_at=grant.starts_at,
        ends_at=grant.ends_at,
        end_before=end_before,
        end_after=end_after,
    )
