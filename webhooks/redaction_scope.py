"""What is kept of one customer, and what stands against erasing it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from uuid import UUID

from django.db.models import Q, Value
from django.db.models.functions import Lower, Now

from billing.models import Fact, Order, Payment, PaymentAlias, PaymentStatus, Wallet
from subscriptions.models import Subscription, SubscriptionStatus, User
from webhooks.models import OPEN_STATUSES, ReviewState, WebhookEvent


@dataclass(frozen=True)
class Scope:
    user_id: UUID | None
    payments: frozenset[UUID]
    # Of the payments, those that are this customer's, and not only paid with the e-mail.
    own_payments: frozenset[UUID]
    # Facts that tell an e-mail.
    facts: frozenset[int]
    events: frozenset[UUID]
    # Of the events, those that are in the archive: (file, event).
    archived: frozenset[tuple[str, UUID]]

    @property
    def users(self) -> list[UUID]:
        return [self.user_id] if self.user_id else []

    @property
    def by_file(self) -> dict[str, set[UUID]]:
        files: dict[str, set[UUID]] = defaultdict(set)
        for name, event in sorted(self.archived):
            files[name].add(event)
        return files

    @property
    def counts(self) -> dict[str, int]:
        return {
            "payments": len(self.payments),
            "facts": len(self.facts),
            "events": len(self.events),
            "archived_events": len(self.archived),
        }

    def __bool__(self) -> bool:
        return self.user_id is not None or bool(self.payments)


def payments_told_of(email: str) -> set[UUID]:
    """Reads every fact: a payment whose facts name several buyers keeps only one of them itself."""
    told = Fact.objects.filter(email__lower=Lower(Value(email)))
    return set(told.values_list("payment_id", flat=True).distinct())


def find(email: str, told_of: Collection[UUID]) -> Scope:
    users = list(User.objects.by_email(email).values_list("pk", flat=True))
    its_email = Q(email__lower=Lower(Value(email)))
    own = Q(user__in=users) | (its_email & Q(user__isnull=True))
    payments = Payment.objects.filter(own | its_email | Q(pk__in=told_of))
    own_payments = payments.filter(own).values_list("pk", "provider", "external_payment_id")
    own_ids = {pk for pk, _provider, _external_id in own_payments}
    ids = set(payments.values_list("pk", flat=True))
    # Who paid for somebody else is only in the facts, and their events, that name them.
    facts = Fact.objects.filter(Q(payment__in=own_ids) | its_email, payment__in=ids)
    named = {(provider, external_id) for _pk, provider, external_id in own_payments}
    aliases = PaymentAlias.objects.filter(payment__in=own_ids)
    named |= set(aliases.values_list("system", "external_id"))
    events = set(facts.values_list("event_id", flat=True)) | _events_naming(users, named)
    events |= set(WebhookEvent.objects.filter(conflict_of__in=events).values_list("pk", flat=True))
    archived = WebhookEvent.objects.filter(pk__in=events, archived_in__isnull=False)
    return Scope(
        user_id=users[0] if users else None,
        payments=frozenset(ids),
        own_payments=frozenset(own_ids),
        facts=frozenset(facts.filter(email__isnull=False).values_list("pk", flat=True)),
        events=frozenset(events),
        archived=frozenset(archived.values_list("archived_in", "pk")),  # type: ignore[arg-type]
    )


def _events_naming(users: list[UUID], payments: set[tuple[str, str]]) -> set[UUID]:
    """Also those that became no fact: of test payments, of types that say nothing, …"""
    orders = set(Order.objects.filter(user__in=users).values_list("merchant_uid", flat=True))
    rows = WebhookEvent.objects.filter(
        Q(external_payment_id__in={external_id for _provider, external_id in payments})
        | Q(merchant_uid__in=orders)
    ).values_list("pk", "provider", "external_payment_id", "merchant_uid")
    return {
        pk
        for pk, provider, external_id, merchant_uid in rows
        if (provider, external_id) in payments or merchant_uid in orders
    }


def never(scope: Scope) -> list[str]:
    """What a person must settle before."""
    waiting = WebhookEvent.objects.filter(
        Q(status__in=OPEN_STATUSES) | Q(review=ReviewState.OPEN), pk__in=scope.events
    ).order_by("pk")
    objections = [
        f"event {event.pk} still waits ({event.error_code or event.status}): link or dismiss it"
        for event in waiting.only("pk", "error_code", "status")
    ]
    if User.objects.filter(Q(is_staff=True) | Q(is_superuser=True), pk__in=scope.users).exists():
        objections.append("the account is a staff member's: take its rights away first")
    return objections


def only_by_force(scope: Scope) -> list[str]:
    """What the customer would lose the use of."""
    objections = []
    running = Q(status=SubscriptionStatus.ACTIVE) | Q(
        status=SubscriptionStatus.CANCELED, current_period_end__gt=Now()
    )
    if Subscription.objects.filter(running, user__in=scope.users).exists():
        objections.append("the subscription is still running")
    not_applied = Payment.objects.filter(
        pk__in=scope.own_payments,
        status__in=[PaymentStatus.SUCCEEDED, PaymentStatus.PROCESSING],
        subscription_applied_at__isnull=True,
    ).order_by("pk")
    objections += [
        f"payment {pk} is {status} and was not applied"
        for pk, status in not_applied.values_list("pk", "status")
    ]
    if Wallet.objects.filter(Q(balance__gt=0) | Q(reserved__gt=0), user__in=scope.users).exists():
        objections.append("there is money in the wallet")
    return objections
