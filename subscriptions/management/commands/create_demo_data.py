import secrets
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction

from subscriptions.models import PeriodUnit, Plan, PlanPrice, User

ADMIN_EMAIL = "admin@example.com"
DEMO_EMAILS = ("demo@example.com", "second@example.com")
LONG_AGO = datetime(2020, 1, 1, tzinfo=UTC)
PLANS = (
    ("monthly", "Monthly", 1, PeriodUnit.MONTH, True, {"RUB": 990, "USD": 10, "KRW": 15900}),
    ("yearly", "Yearly", 1, PeriodUnit.YEAR, False, {"RUB": 9900, "USD": 100, "KRW": 159000}),
)


class Command(BaseCommand):
    help = (
        "Create demo users, plans with prices and one admin login. Running it again adds nothing."
    )

    @transaction.atomic
    def handle(self, *args: Any, **options: Any) -> None:
        if not settings.DEBUG:
            raise CommandError("Demo data is for local copies: DEBUG=1.")
        for email in DEMO_EMAILS:
            if not User.objects.by_email(email).exists():
                User.objects.create_user(email)
        for code, name, count, unit, is_default, prices in PLANS:
            plan, created = Plan.objects.get_or_create(
                code=code,
                defaults={
                    "name": name,
                    "period_count": count,
                    "period_unit": unit,
                    "is_default": is_default,
                },
            )
            if created:
                PlanPrice.objects.bulk_create(
                    PlanPrice(plan=plan, amount=amount, currency=currency, valid_from=LONG_AGO)
                    for currency, amount in prices.items()
                )
        self.stdout.write(f"Demo users: {', '.join(DEMO_EMAILS)}; plans: monthly, yearly")
        self._create_admin()

    def _create_admin(self) -> None:
        if User.objects.filter(is_superuser=True).exists():
            self.stdout.write(
                f"Admin login: {ADMIN_EMAIL}, with the password printed on the first start "
                f"(lost? .venv/bin/python manage.py changepassword {ADMIN_EMAIL})"
            )
            return
        password = secrets.token_urlsafe(12)
        User.objects.create_superuser(ADMIN_EMAIL, password)
        self.stdout.write(self.style.SUCCESS(f"Admin login: {ADMIN_EMAIL}  password: {password}"))
