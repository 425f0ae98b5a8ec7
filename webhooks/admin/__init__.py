"""The back office. Everything is here, above the layers whose tables it shows, because what a
person does goes through webhooks.review."""

from webhooks.admin import audit, customers, events, payments

__all__ = ["audit", "customers", "events", "payments"]
