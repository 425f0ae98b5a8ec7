"""What was ordered, what is kept in wallets, and the read model. To see; nothing here is edited."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.forms.models import BaseInlineFormSet

from billing.models import Booking, Order, PaymentView, Reservation, Wallet, WalletEntry
from billing.money import plain
from webhooks.admin.base import ExactSearch, ProviderFilter, SeeOnly

ROWS_SHOWN = 100


class NewestRows(BaseInlineFormSet):
    """A wallet may have entries without number; its page shows the newest."""

    def get_queryset(self) -> QuerySet[Any]:
        if not hasattr(self, "_newest"):
            self._newest = super().get_queryset().order_by("-pk")[:ROWS_SHOWN]
        return self._newest


class BookingInline(SeeOnly, admin.TabularInline):
    model = Booking
    extra = 0
    fields = ("reference", "status", "paid_at")
    readonly_fields = fields


@admin.register(Order)
class OrderAdmin(SeeOnly, ExactSearch):
    list_display = ("merchant_uid", "buys", "status", "sum", "user", "paid_at", "created_at")
    list_filter = ("status", "buys", "created_at")
    list_select_related = ("user",)
    search_fields = ("merchant_uid", "user__email", "id")
    ordering = ("-pk",)
    show_full_result_count = False
    list_per_page = 50
    inlines = (BookingInline,)

    @admin.display(ordering="amount")
    def sum(self, order: Order) -> str:
        return f"{plain(order.amount)} {order.currency}"


@admin.register(Booking)
class BookingAdmin(SeeOnly, ExactSearch):
    list_display = ("order", "reference", "status", "paid_at", "created_at")
    list_filter = ("status",)
    list_select_related = ("order",)
    search_fields = ("reference", "id")
    ordering = ("-pk",)
    show_full_result_count = False
    list_per_page = 50


class EntryInline(SeeOnly, admin.TabularInline):
    model = WalletEntry
    formset = NewestRows
    extra = 0
    fields = ("created_at", "kind", "amount", "balance_after", "payment_id")
    readonly_fields = fields
    verbose_name_plural = f"entries (the newest {ROWS_SHOWN})"


class ReservationInline(SeeOnly, admin.TabularInline):
    model = Reservation
    formset = NewestRows
    extra = 0
    fields = ("created_at", "payment_id", "amount", "status", "finished_at")
    readonly_fields = fields
    verbose_name_plural = f"reservations (the newest {ROWS_SHOWN})"


@admin.register(Wallet)
class WalletAdmin(SeeOnly, ExactSearch):
    list_display = ("id", "user", "currency", "balance", "reserved", "updated_at")
    list_filter = ("currency",)
    list_select_related = ("user",)
    search_fields = ("id", "user__email")
    ordering = ("-pk",)
    show_full_result_count = False
    list_per_page = 50
    inlines = (ReservationInline, EntryInline)


@admin.register(PaymentView)
class PaymentViewAdmin(SeeOnly, ExactSearch):
    list_display = ("payment_id", "provider", "status", "sum", "user_id", "seq", "told_at")
    list_filter = ("status", ProviderFilter)
    search_fields = ("payment_id", "external_payment_id", "provider_txn_id", "merchant_uid")
    ordering = ("-created_at",)
    show_full_result_count = False
    list_per_page = 50

    @admin.display(ordering="amount")
    def sum(self, row: PaymentView) -> str:
        return "-" if row.amount is None else f"{plain(row.amount)} {row.currency}"
