"""Time of a subscription. Live grants of one subscription lie one behind the other."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal

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
    end_before = _lock(grant)
    starts_at, ends_at = _period(grant)
    cut_at = max(starts_at, min(now, ends_at))
    grant.unused = ends_at - cut_at
    return _cut(grant, cut_at, now, Act.TOOK_BACK, end_before)


def shorten(grant: Grant, by: Decimal, whole: Decimal, now: datetime) -> Effect:
    end_before = _lock(grant)
    starts_at, ends_at = _period(grant)
    cut_before = grant.shortened_by or timedelta(0)
    length = grant.length or ends_at - starts_at
    part = timedelta(seconds=round(length.total_seconds() * float(by / whole)))
    if by < 0:
        back = min(-part, cut_before)
        grant.shortened_by = cut_before - back
        return _lengthen(grant, back, now, end_before)
    cut_at = max(starts_at, min(now, ends_at), ends_at - part)
    grant.shortened_by = cut_before + (ends_at - cut_at)
    return _cut(grant, cut_at, now, Act.SHORTENED, end_before)


def reinstate(grant: Grant, now: datetime) -> Effect:
    """The same grant, as long as what was taken from it, behind all that the customer has now."""
    end_before = _lock(grant)
    unused, grant.unused = grant.unused or timedelta(0), None
    return _lengthen(grant, unused, now, end_before)


def _cut(grant: Grant, cut_at: datetime, now: datetime, act: Act, end_before: datetime) -> Effect:
    _, ends_at = _period(grant)
    grant.ends_at = cut_at
    if cut_at < ends_at:  # It ends in the future, so all that lies behind it does.
        _move_up(_behind(grant, ends_at), to=cut_at)
    others = _live(grant).exclude(pk=grant.pk).aggregate(end=Max("ends_at"))["end"]
    ends = [moment for moment in (others, cut_at if act is Act.SHORTENED else None) if moment]
    end_after = max(ends, default=min(cut_at, end_before))
    return _moved(grant, act, end_before, end_after, now)


def _lengthen(grant: Grant, by: timedelta, now: datetime, end_before: datetime) -> Effect:
    starts_at, ends_at = _period(grant)
    if grant.revoked_at is None and ends_at >= now:
        grant.ends_at = ends_at + by
        end_after = max(end_before, _move_up(_behind(grant, ends_at), to=grant.ends_at))
    else:
        # What was used of it is over; the rest cannot lie in the past.
        begin = max(end_before, now)
        grant.starts_at = starts_at if ends_at == begin else begin
        grant.ends_at = end_after = begin + by
    return _moved(grant, Act.REINSTATED, end_before, end_after, now)


def _move_up(grants: list[Grant], *, to: datetime) -> datetime:
    """Each keeps its length and follows the one before it; returns the end of the last."""
    for grant in grants:
        starts_at, ends_at = _period(grant)
        end = to + (ends_at - starts_at)
        Grant.objects.filter(pk=grant.pk).update(starts_at=to, ends_at=end)
        to = end
    return to


def _behind(grant: Grant, end: datetime) -> list[Grant]:
    return list(_live(grant).filter(starts_at__gte=end).exclude(pk=grant.pk))


def _live(grant: Grant) -> QuerySet[Grant]:
    live = Grant.objects.filter(subscription=grant.subscription_id, revoked_at__isnull=True)
    return live.order_by("starts_at", "ends_at", "pk")


def _lock(grant: Grant) -> datetime:
    """The subscription's end. What others did to the grant's period before we had its
    subscription's lock is read again: they may have moved it up."""
    if grant.subscription_id is None:
        raise ValueError("this grant is not of a subscription")
    end = lock_end(grant.subscription_id)
    grant.refresh_from_db(fields=["starts_at", "ends_at", "unused", "shortened_by"])
    return end


def _period(grant: Grant) -> tuple[datetime, datetime]:
    if grant.starts_at is None or grant.ends_at is None:
        raise ValueError("this grant has no period")
    return grant.starts_at, grant.ends_at


def _moved(
    grant: Grant, act: Act, end_before: datetime, end_after: datetime, now: datetime
) -> Effect:
    if grant.subscription_id is not None:
        move_end(grant.subscription_id, to=end_after, now=now)
    return Effect(
        act=act,
        kind=Purchase.SUBSCRIPTION,
        subscription_id=grant.subscription_id,
        starts_at=grant.starts_at,
        ends_at=grant.ends_at,
        end_before=end_before,
        end_after=end_after,
    )
