"""The money: what providers said of it, what it was for, what it gave, and who was told."""

from billing.models.grants import Grant
from billing.models.orders import Booking, BookingStatus, Order, OrderStatus, Purchase
from billing.models.outbox import (
    DeliveryStatus,
    OutboxDelivery,
    OutboxMessage,
    OutboxTarget,
    PaymentView,
    PoisonMessage,
    ProcessedMessage,
)
from billing.models.payments import (
    Fact,
    Payment,
    PaymentAlias,
    PaymentStatus,
    Refund,
    RefundStatus,
)
from billing.models.wallets import (
    EntryKind,
    Reservation,
    ReservationStatus,
    Wallet,
    WalletEntry,
)

__all__ = [
    "Booking",
    "BookingStatus",
    "DeliveryStatus",
    "EntryKind",
    "Fact",
    "Grant",
    "Order",
    "OrderStatus",
    "OutboxDelivery",
    "OutboxMessage",
    "OutboxTarget",
    "Payment",
    "PaymentAlias",
    "PaymentStatus",
    "PaymentView",
    "PoisonMessage",
    "ProcessedMessage",
    "Purchase",
    "Refund",
    "RefundStatus",
    "Reservation",
    "ReservationStatus",
    "Wallet",
    "WalletEntry",
]
