from uuid import UUID

from django.conf import settings
from django.db.models import QuerySet, Value
from django.db.models.functions import Lower

from billing.models import Payment, PaymentStatus
from subscriptions.models import User


def find_user(email: str | None) -> UUID | None:
    """Whose payment this is, by e-mail. Anybody can type somebody else's address at a provider's
    checkout, but nobody gains by paying for another; LINK_VERIFIED_EMAILS_ONLY guards against
    the reverse, an account opened under an address that is not its owner's."""
    if not email:
        return None
    users = User.objects.by_email(email)
    if settings.LINK_VERIFIED_EMAILS_ONLY:
        users = users.filter(email_verified_at__isnull=False)
    return users.values_list("pk", flat=True).first()


def payments_waiting_for(email: str) -> QuerySet[Payment]:
    return Payment.objects.annotate(email_lower=Lower("email")).filter(
        email_lower=Lower(Value(email)),
        user__isnull=True,
        status=PaymentStatus.SUCCEEDED,
    )
