"""What the customer has."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib.auth.base_user import AbstractBaseUser, BaseUserManager
from django.contrib.auth.models import PermissionsMixin
from django.contrib.postgres.functions import TransactionNow
from django.db import models
from django.db.models import F, Q, Value
from django.db.models.functions import Lower, Now

from subscriptions.ids import time_ordered_id

models.CharField.register_lookup(Lower)


class UserManager(BaseUserManager["User"]):
    def by_email(self, email: str) -> models.QuerySet[User]:
        # Both sides are lowered by PostgreSQL: Python's lower() differs on some letters.
        return self.filter(email__lower=Lower(Value(email)))

    def get_by_natural_key(self, username: str | None) -> User:
        return self.by_email(username or "").get()

    def create_user(self, email: str, password: str | None = None, **fields: Any) -> User:
        user = self.model(email=email.strip(), **fields)
        user.set_password(password)
        user.save(using=self._db)
        return user

    def create_superuser(self, email: str, password: str | None = None, **fields: Any) -> User:
        return self.create_user(email, password, is_staff=True, is_superuser=True, **fields)


class User(AbstractBaseUser, PermissionsMixin):
    id = models.UUIDField(primary_key=True, default=time_ordered_id, editable=False)
    email = models.EmailField(unique=True, max_length=254)
    email_verified_at = models.DateTimeField(null=True, blank=True)
    is_active = models.BooleanField(default=True)
    is_staff = models.BooleanField(default=False)
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(auto_now=True)

    objects: ClassVar[UserManager] = UserManager()

    USERNAME_FIELD = "email"
    EMAIL_FIELD = "email"

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                Lower("email"),
                name="user_email_unique_by_lower_case",
                violation_error_message="A user with this e-mail exists already.",
            ),
        ]

    def __str__(self) -> str:
        return self.email


class PeriodUnit(models.TextChoices):
    DAY = "DAY"
    MONTH = "MONTH"
    YEAR = "YEAR"


class Plan(models.Model):
    id = models.UUIDField(primary_key=True, default=time_ordered_id, editable=False)
    code = models.CharField(
        max_length=255, unique=True, help_text="What providers send as plan_id."
    )
    name = models.CharField(max_length=255)
    period_count = models.PositiveSmallIntegerField(default=1)
    period_unit = models.CharField(
        max_length=8, choices=PeriodUnit.choices, default=PeriodUnit.MONTH
    )
    is_active = models.BooleanField(default=True, help_text="Inactive plans cannot be bought.")
    is_default = models.BooleanField(
        default=False, help_text="Bought by payments that name no plan. At most one."
    )
    created_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["is_default"], condition=Q(is_default=True), name="plan_one_default"
            ),
            models.CheckConstraint(
                condition=Q(period_count__gte=1, period_count__lte=1200),
                name="plan_period_count_sane",
            ),
            models.CheckConstraint(
                condition=Q(period_unit__in=PeriodUnit.values), name="plan_period_unit_known"
            ),
        ]

    def __str__(self) -> str:
        return self.code


class PlanPrice(models.Model):
    plan = models.ForeignKey(Plan, on_delete=models.CASCADE, related_name="prices")
    amount = models.DecimalField(max_digits=19, decimal_places=4)
    currency = models.CharField(max_length=3)
    valid_from = models.DateTimeField(db_default=TransactionNow())
    valid_to = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints: ClassVar = [
            models.UniqueConstraint(
                fields=["plan", "currency", "valid_from"], name="planprice_one_per_start"
            ),
            models.CheckConstraint(
                # NaN is greater than every number in PostgreSQL, so this refuses it as well.
                condition=Q(amount__gt=0, amount__lt=10**15),
                name="planprice_amount_positive_and_finite",
            ),
            models.CheckConstraint(
                condition=Q(currency__regex=r"^[A-Z]{3}$"), name="planprice_currency_code"
            ),
            models.CheckConstraint(
                condition=Q(valid_to__isnull=True) | Q(valid_to__gt=F("valid_from")),
                name="planprice_ends_after_it_starts",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.amount} {self.currency}"


class SubscriptionStatus(models.TextChoices):
    INACTIVE = "INACTIVE"
    ACTIVE = "ACTIVE"
    # Will not renew, but keeps its end. A new payment makes it ACTIVE again.
    CANCELED = "CANCELED"


class Subscription(models.Model):
    id = models.UUIDField(primary_key=True, default=time_ordered_id, editable=False)
    user = models.OneToOneField(User, on_delete=models.PROTECT, related_name="subscription")
    status = models.CharField(
        max_length=16, choices=SubscriptionStatus.choices, default=SubscriptionStatus.INACTIVE
    )
    current_period_end = models.DateTimeField(db_default=TransactionNow())
    created_at = models.DateTimeField(db_default=Now(), editable=False)
    updated_at = models.DateTimeField(db_default=Now(), editable=False)

    class Meta:
        permissions: ClassVar = [("cancel_subscription", "Can cancel renewal")]
        indexes: ClassVar = [
            models.Index(fields=["status", "current_period_end"], name="subscription_status_end"),
        ]
        constraints: ClassVar = [
            models.CheckConstraint(
                condition=Q(status__in=SubscriptionStatus.values),
                name="subscription_status_known",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.status} until {self.current_period_end:%Y-%m-%d %H:%M} UTC"
