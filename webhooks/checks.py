from typing import Any

from django.conf import settings
from django.core import checks

from webhooks.providers import all_providers, enabled_providers


@checks.register()
def providers_are_configured(**_kwargs: Any) -> list[checks.CheckMessage]:
    found: list[checks.CheckMessage] = []
    for suffix, secrets in settings.WEBHOOK_SECRETS.items():
        if suffix.lower().replace("_", "-") not in all_providers():
            found.append(
                checks.Error(f"WEBHOOK_SECRETS_{suffix}: no such provider", id="webhooks.E001")
            )
        if any(len(secret) < 8 for secret in secrets):
            found.append(
                checks.Error(f"WEBHOOK_SECRETS_{suffix}: a secret is too short", id="webhooks.E002")
            )
    if not settings.DATABASE_URL:
        found.append(
            checks.Warning(
                "DATABASE_URL is not set, and no local copy was started here.",
                hint="`make run` starts one; production sets DATABASE_URL and REDIS_URL.",
                id="webhooks.W002",
            )
        )
    if not enabled_providers():
        found.append(
            checks.Warning(
                "No provider is on: every webhook is answered with 404.",
                hint="Set WEBHOOK_SECRETS_TILDA.",
                id="webhooks.W001",
            )
        )
    return found
