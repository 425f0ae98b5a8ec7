from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal

from django.db.models import OuterRef, Q, Subquery

from subscriptions.models import Plan, PlanPrice


@dataclass(frozen=True)
class Offer:
    """A plan and what it cost at some moment in some currency (None: not sold in it then)."""

    plan: Plan
    price: Decimal | None


def find_offer(*, plan_code: str | None, currency: str | None, at: datetime) -> Offer | None:
    """The plan of that code, or the default one; None when there is no such plan on sale."""
    chosen = Q(code=plan_code) if plan_code else Q(is_default=True)
    price = PlanPrice.objects.filter(
        Q(valid_to__isnull=True) | Q(valid_to__gt=at),
        plan=OuterRef("pk"),
        currency=currency or "",
        valid_from__lte=at,
    ).order_by("-valid_from")
    plan = (
        Plan.objects.filter(chosen, is_active=True)
        .annotate(offered_amount=Subquery(price.values("amount")[:1]))
        .first()
    )
    return Offer(plan, plan.offered_amount) if plan else None
