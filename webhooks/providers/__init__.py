"""Which providers there are: every Provider in a module of this folder."""

import importlib
import pkgutil

from django.conf import settings

from webhooks.providers.base import Provider

# The canonical URL is older than the provider names.
_ALIASES = {"payments": "tilda"}


def _discover() -> dict[str, type[Provider]]:
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return {provider.slug: provider for provider in Provider.__subclasses__()}


_PROVIDERS = _discover()


def find_provider(slug: str) -> Provider | None:
    """By URL slug; also those that are off, so that their stored events can still be read."""
    provider = _PROVIDERS.get(_ALIASES.get(slug, slug))
    if provider is None:
        return None
    return provider(settings.WEBHOOK_SECRETS.get(provider.slug.upper().replace("-", "_"), ()))


def provider_of(slug: str) -> Provider:
    provider = find_provider(slug)
    if provider is None:
        raise LookupError(f"provider {slug!r} is no longer part of this release")
    return provider


def all_providers() -> list[str]:
    return sorted(_PROVIDERS)


def enabled_providers() -> list[str]:
    return [slug for slug in all_providers() if provider_of(slug).enabled]
