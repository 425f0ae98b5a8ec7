from django.contrib import admin

from webhooks.admin.base import ExactSearch, SeeOnly
from webhooks.models import AuditEntry


@admin.register(AuditEntry)
class AuditEntryAdmin(SeeOnly, ExactSearch):
    list_display = ("at", "action", "actor", "reason", "event_id", "payment_id")
    list_filter = ("action", "at")
    search_fields = ("event_id", "payment_id", "subscription_id", "user_id", "actor")
    ordering = ("-at",)
    show_full_result_count = False
