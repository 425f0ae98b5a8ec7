"""Payments that start here: their id is known before any provider has heard of them."""

from __future__ import annotations

from uuid import UUID, uuid5

from django.db import connection, transaction
from django.db.models.functions import Now

from billing.facts import FactKind
from billing.initiations import (
    BadInitiation,
    Initiation,
    InitiationRefusal,
    NameTaken,
    NoSuchPayment,
    OtherInitiation,
    OtherTxnId,
    WrongWallet,
    parse_id,
    parse_initiation,
)
from billing.models import (
    Fact,
    Payment,
    PaymentAlias,
    PaymentStatus,
    Reservation,
    ReservationStatus,
    Wallet,
)
from billing.outbox.messages import Message, MessageType, write
from billing.outbox.snapshots import payment_snapshot
from billing.wallets import NoSuchUser, NoSuchWallet, OtherReservation, reserve
from subscriptions.models import User

__all__ = [
    "BadInitiation",
    "Initiation",
    "InitiationRefusal",
    "NameTaken",
    "NoSuchPayment",
    "NoSuchUser",
    "OtherInitiation",
    "OtherTxnId",
    "WrongWallet",
    "initiate",
    "learn_provider_txn_id",
    "parse_initiation",
    "record_refused",
]


@transaction.atomic
def initiate(initiation: Initiation) -> tuple[Payment, bool]:
    """The payment, and whether this call created it. Of two calls at once the second waits at the
    primary key and then finds the first one's payment."""
    created = _create(initiation)
    if created is None:
        return _find(initiation), False
    if initiation.wallet_id is not None:
        _hold(initiation, initiation.wallet_id)
    else:
        _check_others_reservation(initiation)
    return created, True


@transaction.atomic
def record_refused(initiation: Initiation, why: str) -> Payment:
    """For those who cannot be told no in an answer: the payment exists, and it failed. One that
    was started meanwhile, by a repeat that found enough money, stays as it is."""
    payment = _create(initiation)
    if payment is None:
        return _find(initiation)
    _say(payment, FactKind.FAILED, _refusal_id(payment), f"refused:{payment.pk}")
    payment.status, payment.failed_at = PaymentStatus.FAILED, payment.created_at
    payment.save(update_fields=["status", "failed_at"])
    data = {"payment": payment_snapshot(payment), "why": why}
    write(Message(MessageType.PAYMENT_FAILED, payment.pk, "refused", data))
    return payment


@transaction.atomic
def learn_provider_txn_id(payment_id: UUID, provider_txn_id: str) -> Payment:
    """Often the provider names a payment only after we started it; callbacks come by that name."""
    txn_id = parse_id("provider_txn_id", provider_txn_id)
    nameless = Payment.objects.filter(pk=payment_id, provider_txn_id=None)
    named_now = nameless.update(provider_txn_id=txn_id, updated_at=Now()) == 1
    payment = Payment.objects.filter(pk=payment_id).first()
    if payment is None:
        raise NoSuchPayment("there is no such payment")
    if payment.provider_txn_id != txn_id:
        raise OtherTxnId("the provider calls this payment something else")
    _name(payment)
    if named_now:
        data = {"payment": payment_snapshot(payment)}
        write(Message(MessageType.PAYMENT_NAMED, payment.pk, txn_id, data))
    return payment


def _create(initiation: Initiation) -> Payment | None:
    """None where there is one. What we write is the fold of the one fact that we state."""
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO billing_payment
                (id, provider, external_payment_id, provider_txn_id, user_id, amount, currency,
                 merchant_uid, status, initiated_at)
            VALUES
                (%(payment_id)s, %(provider)s, %(payment_id)s::text, %(provider_txn_id)s,
                 %(user_id)s, %(amount)s, %(currency)s, %(merchant_uid)s, %(status)s,
                 statement_timestamp())
            ON CONFLICT DO NOTHING
            """,
            {**vars(initiation), "status": PaymentStatus.PROCESSING},
        )
        if cursor.rowcount != 1:
            return None
    if not User.objects.filter(pk=initiation.user_id).exists():
        raise NoSuchUser("there is no such user")
    payment = Payment.objects.get(pk=initiation.payment_id)
    _name(payment)
    _say(payment, FactKind.PENDING, payment.pk, f"initiated:{payment.pk}")
    wallet_id = None if initiation.wallet_id is None else str(initiation.wallet_id)
    data = {"payment": payment_snapshot(payment), "wallet_id": wallet_id}
    write(Message(MessageType.PAYMENT_INITIATED, payment.pk, "initiated", data))
    return payment


def _find(initiation: Initiation) -> Payment:
    """What was started before. Its first fact says how it was: the payment itself follows what the
    provider said since. A repeat may bring the provider's id that the first did not know yet."""
    payment = Payment.objects.filter(pk=initiation.payment_id).first()
    if payment is None:
        raise NameTaken("another payment goes by this payment_id")
    first = payment.facts.filter(event_id=payment.pk).first()
    if first is None or _terms(payment, first) != _terms_asked(initiation):
        raise OtherInitiation("this payment_id was used for another payment")
    if initiation.wallet_id is not None:
        _check_held(payment, initiation.wallet_id)
    if initiation.provider_txn_id is not None:
        return learn_provider_txn_id(payment.pk, initiation.provider_txn_id)
    return payment


def _terms(payment: Payment, first: Fact) -> tuple[object, ...]:
    return (payment.provider, payment.user_id, first.amount, first.currency, first.merchant_uid)


def _terms_asked(asked: Initiation) -> tuple[object, ...]:
    return (asked.provider, asked.user_id, asked.amount, asked.currency, asked.merchant_uid)


def _check_held(payment: Payment, wallet_id: UUID) -> None:
    """Whoever names a wallet relies on its money being held; a refused payment promised none."""
    held = Reservation.objects.filter(payment_id=payment.pk, wallet_id=wallet_id)
    refused = payment.facts.filter(event_id=_refusal_id(payment))
    if not held.exists() and not refused.exists():
        raise OtherInitiation("this payment_id was used with another wallet, or with none")


def _check_others_reservation(initiation: Initiation) -> None:
    """Money that was reserved beforehand for this payment pays it, if it is the payer's own."""
    reserved = Reservation.objects.filter(payment_id=initiation.payment_id)
    if reserved.exclude(wallet__user=initiation.user_id).exists():
        raise WrongWallet("somebody else's money is reserved for this payment_id")


def _name(payment: Payment) -> None:
    """Its own id and the provider's are names of one payment. Two payments that want one name at
    once queue up at the alias's unique key, and the second is refused."""
    known = (payment.external_payment_id, payment.provider_txn_id)
    names = sorted({name for name in known if name is not None})
    PaymentAlias.objects.bulk_create(
        [PaymentAlias(system=payment.provider, external_id=n, payment=payment) for n in names],
        ignore_conflicts=True,
    )
    aliases = PaymentAlias.objects.filter(system=payment.provider, external_id__in=names)
    if aliases.exclude(payment=payment).exists():
        raise NameTaken("another payment goes by this payment_id or provider_txn_id")


def _say(payment: Payment, kind: FactKind, event_id: UUID, event_key: str) -> None:
    Fact.objects.create(
        payment=payment,
        event_id=event_id,
        event_key=event_key,
        reading=event_key.partition(":")[0],
        kind=kind,
        amount=payment.amount,
        currency=payment.currency,
        merchant_uid=payment.merchant_uid,
        received_at=payment.created_at,
    )


def _hold(initiation: Initiation, wallet_id: UUID) -> None:
    wallet = Wallet.objects.filter(pk=wallet_id).first()
    if wallet is None:
        raise NoSuchWallet("there is no such wallet")
    if (wallet.user_id, wallet.currency) != (initiation.user_id, initiation.currency):
        raise WrongWallet("the wallet is another user's or holds another currency")
    held = reserve(payment_id=initiation.payment_id, wallet_id=wallet_id, amount=initiation.amount)
    # Somebody may have reserved before the payment was started, and let go of it since.
    if held.status != ReservationStatus.RESERVED:
        raise OtherReservation("this payment's reservation is finished already")


def _refusal_id(payment: Payment) -> UUID:
    return uuid5(payment.pk, "refused")
