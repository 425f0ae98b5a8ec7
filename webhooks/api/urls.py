"""Everything under /api/. With and without the trailing slash: a redirect would turn a POST into a
GET."""

from django.urls import URLPattern, re_path
from rest_framework.views import APIView

from webhooks.api.base import NoSuchUrl
from webhooks.api.orders import OrdersView, OrderView
from webhooks.api.payments import PaymentDetailView, PaymentsView, ProviderTxnView
from webhooks.api.reading import UUID_PATTERN
from webhooks.api.wallets import (
    CommitView,
    ReleaseView,
    ReservationsView,
    WalletsView,
    WalletView,
)


def _url(pattern: str, view: type[APIView], name: str) -> URLPattern:
    return re_path(rf"^{pattern}/?$", view.as_view(), name=f"api-{name}")


_PAYMENT = rf"(?P<payment_id>{UUID_PATTERN})"
_WALLET = rf"wallets/(?P<wallet_id>{UUID_PATTERN})"

urlpatterns = [
    _url("orders", OrdersView, "orders"),
    _url(r"orders/(?P<merchant_uid>.+?)", OrderView, "order"),
    _url("payments", PaymentsView, "payments"),
    _url(rf"payments/{_PAYMENT}", PaymentDetailView, "payment"),
    _url(rf"payments/{_PAYMENT}/provider-txn", ProviderTxnView, "provider-txn"),
    _url("wallets", WalletsView, "wallets"),
    _url(_WALLET, WalletView, "wallet"),
    _url(rf"{_WALLET}/reservations", ReservationsView, "reservations"),
    _url(rf"{_WALLET}/reservations/{_PAYMENT}/commit", CommitView, "commit"),
    _url(rf"{_WALLET}/reservations/{_PAYMENT}/release", ReleaseView, "release"),
    # Last: whatever else.
    re_path("", NoSuchUrl.as_view()),
]
