from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.forms import BaseUserCreationForm
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse

from billing.models import Grant
from billing.money import BadMoney, parse_amount, parse_currency
from subscriptions.models import Plan, PlanPrice, Subscription, User
from webhooks import review
from webhooks.admin.base import ExactSearch, ReasonForm, SeeOnly, WithActions, decide


class UserCreationForm(BaseUserCreationForm):
    class Meta:
        model = User
        fields = ("email",)


@admin.register(User)
class UserAdmin(DjangoUserAdmin):
    add_form = UserCreationForm
    fieldsets = (
        (None, {"fields": ("email", "email_verified_at", "password")}),
        ("Staff", {"fields": ("is_active", "is_staff", "is_superuser", "groups")}),
        ("Dates", {"fields": ("last_login", "created_at")}),
    )
    add_fieldsets = ((None, {"fields": ("email", "password1", "password2")}),)
    readonly_fields = ("last_login", "created_at")
    list_display = ("email", "is_active", "is_staff", "created_at")
    list_filter = ("is_staff", "is_active")
    search_fields = ("email",)
    ordering = ("-pk",)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        """Who may edit users must not be able to make a superuser of one."""
        fixed = super().get_readonly_fields(request, obj)
        rights = ("is_staff", "is_superuser", "groups")
        return fixed if request.user.is_superuser else (*fixed, *rights)


class PriceForm(forms.ModelForm):
    class Meta:
        model = PlanPrice
        fields = ("amount", "currency", "valid_from", "valid_to")

    def clean(self) -> dict[str, Any] | None:
        cleaned = super().clean() or self.cleaned_data
        try:
            currency = cleaned["currency"] = parse_currency(cleaned.get("currency"))
            cleaned["amount"] = parse_amount(cleaned.get("amount"), currency)
        except BadMoney as error:
            raise forms.ValidationError(str(error)) from error
        return cleaned


class PriceInline(admin.TabularInline):
    model = PlanPrice
    form = PriceForm
    extra = 0


@admin.register(Plan)
class PlanAdmin(admin.ModelAdmin):
    list_display = ("code", "name", "period_count", "period_unit", "is_active", "is_default")
    inlines = (PriceInline,)


class SubscriptionGrantInline(SeeOnly, admin.TabularInline):
    model = Grant
    extra = 0
    fields = ("payment", "plan", "starts_at", "ends_at", "revoked_at")
    readonly_fields = fields


@admin.register(Subscription)
class SubscriptionAdmin(SeeOnly, ExactSearch, WithActions):
    list_display = ("user", "status", "current_period_end", "updated_at")
    list_filter = ("status",)
    list_select_related = ("user",)
    search_fields = ("user__email",)
    ordering = ("-pk",)
    inlines = (SubscriptionGrantInline,)
    actions = ("cancel_renewal",)

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("subscriptions.cancel_subscription")

    @admin.action(description="Cancel renewal", permissions=["cancel"])
    def cancel_renewal(
        self, request: HttpRequest, queryset: QuerySet[Subscription]
    ) -> HttpResponse | None:
        return decide(
            self,
            request,
            queryset,
            form_class=ReasonForm,
            act=lambda subscription, actor, form: review.cancel_renewal(
                subscription, actor, form["reason"]
            ),
        )
