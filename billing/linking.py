from uuid import UUID

from django.conf import settings
from django.db.models import Exists, OuterRef, QuerySet, Value
from django.db.models.functions import Lower

from billing.models import Payment, PaymentStatus
from subscriptions.models import User


def find_user(email: str | None) -> UUID | None:
    """Whose payment this is, by e-mail. Anybody can type somebody else's address at a provider's
    checkout, but nobody gains by paying for another; LINK_VERIFIED_EMAILS_ONLY guards against
    the reverse, an account opened under an address that is not its owner's."""
    if not email:
        return None
    users = _linkable_users().filter(email__lower=Lower(Value(email)))
    return users.values_list("pk", flat=True).first()


def payments_waiting_for(email: str) -> QuerySet[Payment]:
    return _unlinked().filter(email__lower=Lower(Value(email)))


def payments_whose_user_is_there() -> QuerySet[Payment]:
    owner = _linkable_users().filter(email__lower=Lower(OuterRef("email")))
    return _unlinked().filter(Exists(owner))


def _unlinked() -> QuerySet[Payment]:
    return Payment.objects.filter(user__isnull=True, status=PaymentStatus.SUCCEEDED)


def _linkable_users() -> QuerySet[User]:
    if settings.LINK_VERIFIED_EMAILS_ONLY:
        return User.objects.filter(email_verified_at__isnull=False)
    return User.objects.all()
