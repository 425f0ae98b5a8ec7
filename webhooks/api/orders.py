from __future__ import annotations

from typing import Any

from django.db import transaction
from rest_framework.request import Request
from rest_framework.response import Response

from billing.models import Order, OrderStatus, Purchase
from billing.ordering import create_order
from webhooks import audit, linking
from webhooks.api import showing
from webhooks.api.access import Rights
from webhooks.api.base import ApiView
from webhooks.api.idempotency import Answer
from webhooks.api.reading import (
    Filters,
    chosen,
    moment,
    one_of,
    optional_uuid,
    page,
    required_uuid,
    text,
)
from webhooks.api.refusals import no_such
from webhooks.api.tokens import Scope
from webhooks.audit import Action, Actor
from webhooks.providers.fields import optional_id, required_id, storable

RIGHTS = Rights(read=Scope.ORDERS_READ, write=Scope.ORDERS_WRITE, view="billing.view_order")
FILTERS: Filters = {
    "status": ("status", one_of(OrderStatus.values)),
    "user": ("user_id", required_uuid),
    # For one whose merchant_uid cannot be the end of an address, say "a/".
    "merchant_uid": ("merchant_uid", text),
    "created_from": ("created_at__gte", moment),
    "created_to": ("created_at__lt", moment),
}
ORDERABLE = [Purchase.SUBSCRIPTION.value, Purchase.BOOKING.value, Purchase.WALLET_TOPUP.value]
_WITH_PARTS = Order.objects.select_related("plan", "booking")


class OrdersView(ApiView):
    rights = RIGHTS

    def get(self, request: Request) -> Response:
        rows = _WITH_PARTS.filter(**chosen(request.query_params, FILTERS))
        return self.show(lambda: page(request, rows, tie_breaker="pk", show=showing.order))

    def post(self, request: Request) -> Response:
        return self.act(request, _create)


class OrderView(ApiView):
    rights = RIGHTS

    def get(self, request: Request, merchant_uid: str) -> Response:
        return self.show(lambda: _find(merchant_uid))


def _create(data: dict[str, Any], actor: Actor) -> Answer:
    order, created = create_order(
        merchant_uid=required_id(data, "merchant_uid"),
        buys=one_of(ORDERABLE)(data, "buys"),
        user_id=required_uuid(data, "user"),
        amount=data.get("amount"),
        currency=data.get("currency"),
        plan_code=optional_id(data, "plan"),
        wallet_id=optional_uuid(data, "wallet"),
        booking_reference=optional_id(data, "reference"),
    )
    if created:
        details = {"merchant_uid": order.merchant_uid, "buys": order.buys}
        audit.write(
            audit.entry(Action.ORDER_CREATED, actor, user_id=order.user_id, details=details)
        )
    # Payments that named it may have come before it. Also for a repeat: the first call may have
    # died right after its commit.
    transaction.on_commit(lambda: linking.link_payments_of_order(order), robust=True)
    return Answer(201 if created else 200, showing.order(order))


def _find(merchant_uid: str) -> dict[str, Any]:
    order = None
    if storable(merchant_uid):
        order = _WITH_PARTS.filter(merchant_uid=merchant_uid).first()
    if order is None:
        raise no_such("order")
    return showing.order(order)
