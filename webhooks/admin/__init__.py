"""The back office. Everything is here, above the layers whose tables it shows, because what a
person does goes through webhooks.review."""

from webhooks.admin import api, audit, customers, events, orders, outbox, payments

__all__ = ["api", "audit", "customers", "events", "orders", "outbox", "payments"]
