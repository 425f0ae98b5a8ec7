from uuid import UUID

from django.conf import settings
from django.db.models import Exists, OuterRef, QuerySet, Value
from django.db.models.functions import Lower

from billing.models import Order, Payment, PaymentStatus
from subscriptions.models import User


def find_order(merchant_uid: str | None) -> Order | None:
    """Under its lock: two payments of one order queue up here."""
    if not merchant_uid:
        return None
    orders = Order.objects.select_for_update(of=("self",), no_key=True).select_related("plan")
    return orders.filter(merchant_uid=merchant_uid).first()


def order_exists(merchant_uid: str | None) -> bool:
    return bool(merchant_uid) and Order.objects.filter(merchant_uid=merchant_uid or "").exists()


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


def payments_waiting_for_order(merchant_uid: str) -> QuerySet[Payment]:
    return _not_applied().filter(merchant_uid=merchant_uid, order__isnull=True)


def payments_whose_order_is_there() -> QuerySet[Payment]:
    order = Order.objects.filter(merchant_uid=OuterRef("merchant_uid"))
    return _not_applied().filter(Exists(order), order__isnull=True)


def payments_whose_user_is_there() -> QuerySet[Payment]:
    owner = _linkable_users().filter(email__lower=Lower(OuterRef("email")))
    return _unlinked().filter(Exists(owner))


def _unlinked() -> QuerySet[Payment]:
    return _not_applied().filter(user__isnull=True)


def _not_applied() -> QuerySet[Payment]:
    return Payment.objects.filter(
        status=PaymentStatus.SUCCEEDED, subscription_applied_at__isnull=True
    )


def _linkable_users() -> QuerySet[User]:
    if settings.LINK_VERIFIED_EMAILS_ONLY:
        return User.objects.filter(email_verified_at__isnull=False)
    return User.objects.all()
