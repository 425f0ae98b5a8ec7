"""Every reason why an event did not simply become PROCESSED. docs/operations.md explains them."""

from django.db import models


class ErrorCode(models.TextChoices):
    # Not believed.
    INVALID_SIGNATURE = "INVALID_SIGNATURE"
    TIMESTAMP_EXPIRED = "TIMESTAMP_EXPIRED"
    # Believed, but nothing to do.
    NON_SUCCESS_STATUS = "NON_SUCCESS_STATUS"
    OUT_OF_ORDER = "OUT_OF_ORDER"
    UNKNOWN_TYPE = "UNKNOWN_TYPE"
    TEST_MODE = "TEST_MODE"
    # Parked until somebody appears who can be given what was bought.
    USER_MISSING = "USER_MISSING"
    UNLINKED_PAYMENT = "UNLINKED_PAYMENT"
    # A callback for a payment of ours whose number at the provider we were not told yet.
    PAYMENT_UNKNOWN = "PAYMENT_UNKNOWN"
    # A person must decide.
    AMOUNT_MISMATCH = "AMOUNT_MISMATCH"
    PLAN_UNKNOWN = "PLAN_UNKNOWN"
    PERIOD_OVERFLOW = "PERIOD_OVERFLOW"
    PAYLOAD_CONFLICT = "PAYLOAD_CONFLICT"
    ORDER_ALREADY_PAID = "ORDER_ALREADY_PAID"
    ORDER_CLOSED = "ORDER_CLOSED"
    LATE_SUCCESS = "LATE_SUCCESS"
    WALLET_SHORT = "WALLET_SHORT"
    PAYMENTS_JOINED = "PAYMENTS_JOINED"
    CANCEL_UNCONFIRMED = "CANCEL_UNCONFIRMED"
    FACTS_DISAGREE = "FACTS_DISAGREE"
    PAYMENT_DISMISSED = "PAYMENT_DISMISSED"
    REVOKE_DUE = "REVOKE_DUE"
    PARTIAL_REFUND = "PARTIAL_REFUND"
    DISPUTED = "DISPUTED"
    REINSTATE_DUE = "REINSTATE_DUE"
    MALFORMED = "MALFORMED"
    RETRIES_EXHAUSTED = "RETRIES_EXHAUSTED"
    # Tried again by itself.
    PROCESSING_ERROR = "PROCESSING_ERROR"


# Waiting is not failing: these do not use up attempts.
WAITING = frozenset({ErrorCode.USER_MISSING, ErrorCode.UNLINKED_PAYMENT})
