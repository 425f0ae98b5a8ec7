"""A message that asks us to start a payment: taken once, or kept for a person."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from enum import StrEnum
from typing import Any

import structlog
from django.db import DataError, IntegrityError, InterfaceError, OperationalError, connection

from billing.initiating import initiate, record_refused
from billing.initiations import Initiation, InitiationRefusal, parse_initiation
from billing.outbox.messages import MessageType
from billing.wallets import TooLittleMoney, WalletRefusal

logger = structlog.get_logger("billing")

_MAX_BODY_BYTES = 1024 * 1024
_MAX_NUMBER_CHARS = 64
# Neither says anything about the message: it is taken again once the database is well.
DATABASE_AWAY = (OperationalError, InterfaceError)


class Taken(StrEnum):
    INITIATED = "initiated"
    DUPLICATE = "duplicate"
    # The wallet has too little money: the payment is there, and it failed.
    REFUSED = "refused"
    # Of another type: not for us.
    IGNORED = "ignored"
    POISON = "poison"


class Poison(Exception):
    """This message can never be taken as it is. The text is ours, and quotes nothing of it."""


@dataclass(frozen=True)
class Incoming:
    source: str
    # Where it lies at its source: the same for every repeat of it, and of nothing else.
    position: str
    body: bytes
    # The source's own word for it.
    token: Any = field(default=None, compare=False, repr=False)


def take(incoming: Incoming) -> Taken:
    """Committed when it returns. Raises only what DATABASE_AWAY names."""
    try:
        return accept(incoming.body)
    except Poison as poison:
        why = str(poison)
    _keep(incoming, why)
    logger.error("payment_message_poison", position=incoming.position, why=why)
    return Taken.POISON


def accept(body: bytes) -> Taken:
    """Raises Poison."""
    data = _read(body)
    if data is None:
        return Taken.IGNORED
    try:
        return _initiate(parse_initiation(data))
    except (InitiationRefusal, WalletRefusal) as refusal:
        raise Poison(f"{type(refusal).__name__}: {refusal}") from refusal
    except DATABASE_AWAY:
        raise
    except (DataError, IntegrityError) as error:
        raise Poison(type(error).__name__) from error
    except Exception as error:
        # A fault of ours, maybe; others' payments must not wait until it is mended.
        logger.exception("payment_message_failed")
        raise Poison(type(error).__name__) from error


def _initiate(initiation: Initiation) -> Taken:
    try:
        _, is_new = initiate(initiation)
    except TooLittleMoney as refusal:
        record_refused(initiation, str(refusal))
        return Taken.REFUSED
    return Taken.INITIATED if is_new else Taken.DUPLICATE


def _keep(incoming: Incoming, why: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO billing_poisonmessage (source, position, body, error)
            VALUES (%s, %s, %s, %s) ON CONFLICT (source, position) DO NOTHING
            """,
            [incoming.source, incoming.position[:255], incoming.body[:_MAX_BODY_BYTES], why[:500]],
        )


def _read(body: bytes) -> Mapping[str, object] | None:
    """What is said of the payment, by itself or in an envelope {"type", "data"}; None for an
    envelope of another type."""
    if len(body) > _MAX_BODY_BYTES:
        raise Poison("the message is too large")
    try:
        said = json.loads(
            body.decode("utf-8"),
            object_pairs_hook=_unique_keys,
            parse_int=_integer,
            parse_float=_number,
            parse_constant=_number,
        )
    except (ValueError, RecursionError) as error:
        raise Poison("the message is not JSON") from error
    if isinstance(said, dict) and "type" in said and "data" in said:
        if said["type"] != MessageType.PAYMENT_INITIATED:
            return None
        said = said["data"]
    if not isinstance(said, dict):
        raise Poison("the message is not a JSON object")
    return said


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise Poison("an object has the same key twice")
    return found


def _integer(literal: str) -> int:
    return int(_number(literal))


def _number(literal: str) -> Decimal:
    """Never a float, and of thousands of digits or NaN nothing at all."""
    try:
        number = Decimal(literal[:_MAX_NUMBER_CHARS])
    except InvalidOperation as error:
        raise Poison("a number is out of range") from error
    if len(literal) > _MAX_NUMBER_CHARS or not number.is_finite():
        raise Poison("a number is out of range")
    return number
