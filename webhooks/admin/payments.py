from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from billing.models import Fact, Grant, Payment, PaymentAlias, PaymentStatus, Refund
from billing.money import plain
from subscriptions.models import User
from webhooks import review
from webhooks.admin.base import (
    ExactSearch,
    ProviderFilter,
    ReasonForm,
    SeeOnly,
    WithActions,
    decide,
)


class LinkForm(ReasonForm):
    email = forms.EmailField(label="User's e-mail")

    def clean_email(self) -> User:
        user = User.objects.by_email(self.cleaned_data["email"]).first()
        if user is None:
            raise forms.ValidationError("No user has this e-mail.")
        return user


class UnlinkedFilter(admin.SimpleListFilter):
    title = "link"
    parameter_name = "link"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("unlinked", "Unlinked"),
            ("not_applied", "Succeeded, not applied"),
            ("linked", "Linked"),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        match self.value():
            case "unlinked":
                return queryset.filter(user__isnull=True, status=PaymentStatus.SUCCEEDED)
            case "not_applied":
                return queryset.filter(
                    status=PaymentStatus.SUCCEEDED,
                    subscription_applied_at__isnull=True,
                    grant__isnull=True,
                )
            case "linked":
                return queryset.filter(user__isnull=False)
        return queryset


class FactInline(SeeOnly, admin.TabularInline):
    model = Fact
    extra = 0
    fields = (
        "kind",
        "amount",
        "currency",
        "refund_id",
        "amount_refunded",
        "occurred_at",
        "received_at",
        "event_key",
    )
    readonly_fields = fields


class RefundInline(SeeOnly, admin.TabularInline):
    model = Refund
    extra = 0
    fields = ("external_refund_id", "status", "amount", "currency", "created_at")
    readonly_fields = fields


class AliasInline(SeeOnly, admin.TabularInline):
    model = PaymentAlias
    extra = 0
    fields = ("system", "external_id")
    readonly_fields = fields


class GrantInline(SeeOnly, admin.TabularInline):
    model = Grant
    extra = 0
    fields = (
        "kind",
        "order",
        "plan",
        "starts_at",
        "ends_at",
        "booking",
        "wallet",
        "amount",
        "created_at",
        "revoked_at",
        "revoked_because",
    )
    readonly_fields = fields


@admin.register(Payment)
class PaymentAdmin(SeeOnly, ExactSearch, WithActions):
    list_display = (
        "external_payment_id",
        "provider",
        "status",
        "sum",
        "email",
        "user",
        "subscription_applied_at",
        "created_at",
    )
    list_filter = (UnlinkedFilter, "status", ProviderFilter)
    list_select_related = ("user",)
    search_fields = (
        "external_payment_id",
        "provider_txn_id",
        "merchant_uid",
        "email",
        "user__email",
        "id",
    )
    ordering = ("-pk",)
    show_full_result_count = False
    list_per_page = 50
    readonly_fields = ("events",)
    inlines = (GrantInline, RefundInline, FactInline, AliasInline)
    actions = ("link_to_user",)

    @admin.display(ordering="amount")
    def sum(self, payment: Payment) -> str:
        return "-" if payment.amount is None else f"{plain(payment.amount)} {payment.currency}"

    @admin.display(description="webhook events")
    def events(self, payment: Payment) -> SafeString:
        url = reverse("admin:webhooks_webhookevent_changelist")
        wanted = {
            "provider": payment.provider,
            "external_payment_id": payment.external_payment_id,
        }
        return format_html('<a href="{}?{}">all events of this payment</a>', url, urlencode(wanted))

    def has_link_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("billing.link_payment")

    @admin.action(description="Link to user", permissions=["link"])
    def link_to_user(
        self, request: HttpRequest, queryset: QuerySet[Payment]
    ) -> HttpResponse | None:
        return decide(
            self,
            request,
            queryset,
            form_class=LinkForm,
            act=lambda payment, actor, form: review.link(
                payment, form["email"], actor, form["reason"]
            ),
        )


@admin.register(Grant)
class GrantAdmin(SeeOnly, admin.ModelAdmin):
    list_display = ("payment", "subscription", "plan", "starts_at", "ends_at", "revoked_at")
    list_select_related = ("payment", "subscription", "plan")
    list_filter = ("plan",)
    ordering = ("-pk",)
    show_full_result_count = False
