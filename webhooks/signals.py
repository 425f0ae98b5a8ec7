from typing import Any

from django.db import transaction
from django.db.models.signals import post_save
from django.dispatch import receiver

from subscriptions.models import User
from webhooks.linking import link_waiting_payments


@receiver(post_save, sender=User)
def link_when_a_user_appears(
    instance: User, update_fields: frozenset[str] | None = None, **_kwargs: Any
) -> None:
    """After the commit, so that the walk sees the user. Robust: whoever signs up must not see an
    error because of an old payment; recovery tries again."""

    def link() -> None:
        link_waiting_payments(instance)

    if update_fields is None or {"email", "email_verified_at"} & update_fields:
        transaction.on_commit(link, robust=True)
