"""What settling a payment starts from and comes to. Pure data."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from uuid import UUID

from billing.policies import Objection
from billing.purchases.base import Effect
from billing.recording import Recorded
from subscriptions.models import Plan


@dataclass(frozen=True)
class Decision:
    """What a person decided about a payment; it takes the same walk as everything else."""

    user_id: UUID | None = None
    overrule: bool = False
    plan: Plan | None = None
    revoke: bool = False
    shorten: bool = False
    reinstate: bool = False

    @property
    def about_what_was_given(self) -> bool:
        return self.revoke or self.shorten or self.reinstate


@dataclass(frozen=True)
class Settlement:
    # After a person's decision, should one have been taken: it is a fact as well.
    recorded: Recorded
    objection: Objection | None = None
    effect: Effect | None = None
    linked_now: bool = False
    # The reservation of a payment that came to nothing.
    released: bool = False
    # Of what was refunded, how much a person has dealt with: by shortening, or by letting it be.
    shortened_for: Decimal = Decimal(0)
    kept_for: Decimal = Decimal(0)

    @property
    def undecided_refund(self) -> bool:
        """More was refunded than anybody has dealt with, while what it bought is still given."""
        payment = self.recorded.payment
        dealt_with = self.shortened_for + self.kept_for
        return bool(payment.subscription_applied_at) and payment.amount_refunded > dealt_with

    @property
    def owes_back(self) -> bool:
        """It was shortened for a refund that failed after all."""
        payment = self.recorded.payment
        return bool(payment.subscription_applied_at) and (
            payment.amount_refunded < self.shortened_for
        )

    @property
    def reinstatable(self) -> bool:
        return self.recorded.folded.reinstatable or self.owes_back
