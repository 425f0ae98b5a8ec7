from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

from rest_framework.request import Request
from rest_framework.response import Response

from billing import wallets
from billing.models import Payment, Reservation, ReservationStatus, Wallet
from billing.money import parse_amount, parse_currency
from webhooks import audit
from webhooks.api import showing
from webhooks.api.access import Rights
from webhooks.api.base import ApiView
from webhooks.api.idempotency import Answer
from webhooks.api.reading import required_uuid
from webhooks.api.refusals import no_such
from webhooks.api.tokens import Scope
from webhooks.audit import Action, Actor
from webhooks.errors import Refused

RIGHTS = Rights(read=Scope.WALLETS_READ, write=Scope.WALLETS_WRITE, view="billing.view_wallet")
ENTRIES_SHOWN = 20


class WalletsView(ApiView):
    rights = RIGHTS

    def post(self, request: Request) -> Response:
        return self.act(request, _open)


class WalletView(ApiView):
    rights = RIGHTS

    def get(self, request: Request, wallet_id: str) -> Response:
        return self.show(lambda: _show(_find(UUID(wallet_id))))


class ReservationsView(ApiView):
    rights = RIGHTS

    def post(self, request: Request, wallet_id: str) -> Response:
        return self.act(request, partial(_reserve, UUID(wallet_id)))


class CommitView(ApiView):
    rights = RIGHTS

    def post(self, request: Request, wallet_id: str, payment_id: str) -> Response:
        return self.act(request, partial(_commit, UUID(wallet_id), UUID(payment_id)))


class ReleaseView(ApiView):
    rights = RIGHTS

    def post(self, request: Request, wallet_id: str, payment_id: str) -> Response:
        return self.act(request, partial(_release, UUID(wallet_id), UUID(payment_id)))


def _open(data: dict[str, Any], actor: Actor) -> Answer:
    user_id = required_uuid(data, "user")
    currency = parse_currency(data.get("currency"))
    known = Wallet.objects.filter(user_id=user_id, currency=currency).exists()
    wallet = wallets.open_wallet(user_id=user_id, currency=currency)
    wallet.refresh_from_db()
    if not known:
        details = {"wallet": str(wallet.pk), "currency": currency}
        audit.write(audit.entry(Action.WALLET_OPENED, actor, user_id=user_id, details=details))
    return Answer(200 if known else 201, _show(wallet))


def _reserve(wallet_id: UUID, data: dict[str, Any], actor: Actor) -> Answer:
    payment_id = required_uuid(data, "payment_id")
    amount = parse_amount(data.get("amount"), _find(wallet_id).currency)
    known = Reservation.objects.filter(payment_id=payment_id).exists()
    reservation = wallets.reserve(payment_id=payment_id, wallet_id=wallet_id, amount=amount)
    if not known:
        _write_down(Action.WALLET_RESERVED, actor, reservation)
    return Answer(200 if known else 201, showing.reservation(reservation))


def _commit(wallet_id: UUID, payment_id: UUID, data: dict[str, Any], actor: Actor) -> Answer:
    held = _find_reservation(wallet_id, payment_id)
    started_here = Payment.objects.filter(pk=payment_id, initiated_at__isnull=False).exists()
    if held.status == ReservationStatus.RESERVED and started_here:
        # Else the money would be gone although the provider may yet say that the payment failed.
        message = "this reservation is committed when its payment succeeds"
        raise Refused(409, "RESERVATION_FOLLOWS_PAYMENT", message)
    finished = wallets.commit(payment_id)
    if finished.reservation.status != ReservationStatus.COMMITTED:
        raise Refused(409, "RESERVATION_RELEASED", "this reservation was released before")
    if finished.moved:
        _write_down(Action.WALLET_COMMITTED, actor, finished.reservation)
    return Answer(200, showing.reservation(finished.reservation))


def _release(wallet_id: UUID, payment_id: UUID, data: dict[str, Any], actor: Actor) -> Answer:
    _find_reservation(wallet_id, payment_id)
    finished = wallets.release(payment_id)
    if finished.reservation.status != ReservationStatus.RELEASED:
        raise Refused(409, "RESERVATION_COMMITTED", "this reservation was committed before")
    if finished.moved:
        _write_down(Action.WALLET_RELEASED, actor, finished.reservation)
    return Answer(200, showing.reservation(finished.reservation))


def _write_down(action: Action, actor: Actor, reservation: Reservation) -> None:
    details = {"wallet": str(reservation.wallet_id)}
    audit.write(audit.entry(action, actor, payment_id=reservation.payment_id, details=details))


def _find(wallet_id: UUID) -> Wallet:
    wallet = Wallet.objects.filter(pk=wallet_id).first()
    if wallet is None:
        raise no_such("wallet")
    return wallet


def _find_reservation(wallet_id: UUID, payment_id: UUID) -> Reservation:
    held = Reservation.objects.filter(wallet_id=wallet_id, payment_id=payment_id).first()
    if held is None:
        raise no_such("reservation")
    return held


def _show(wallet: Wallet) -> dict[str, Any]:
    entries = wallet.entries.order_by("-pk")[:ENTRIES_SHOWN]
    return showing.wallet(wallet, entries=list(entries))
