"""Messages on their way to others, and those from others that could not be taken."""

from __future__ import annotations

import json
from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from billing.models import DeliveryStatus, OutboxDelivery, PoisonMessage
from billing.outbox.targets import target_names
from webhooks import dead_letters
from webhooks.admin.base import ExactSearch, ReasonForm, SeeOnly, WithActions, decide


class TargetFilter(admin.SimpleListFilter):
    """From the settings: asking a large table which values it has would take long."""

    title = "target"
    parameter_name = "target"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in target_names()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(target=self.value()) if self.value() else queryset


class DeliveryFilter(admin.SimpleListFilter):
    """Dead letters unless something else is asked for: they are what waits for a person."""

    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("all", "All"), *DeliveryStatus.choices]

    def choices(self, changelist: Any) -> Any:
        # Without Django's own "All", which would be the default's name.
        chosen = self.value() or DeliveryStatus.DEAD
        for word, title in self.lookup_choices:
            yield {
                "selected": chosen == word,
                "query_string": changelist.get_query_string({self.parameter_name: word}),
                "display": title,
            }

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        # An action names its rows, whatever became of them since the list was shown.
        default = "all" if request.method == "POST" else DeliveryStatus.DEAD
        wanted = self.value() or default
        return queryset if wanted == "all" else queryset.filter(status=wanted)


@admin.register(OutboxDelivery)
class OutboxDeliveryAdmin(SeeOnly, ExactSearch, WithActions):
    list_display = (
        "type",
        "target",
        "status",
        "key",
        "seq",
        "attempts",
        "last_error",
        "next_attempt_at",
        "delivered_at",
    )
    list_filter = (DeliveryFilter, TargetFilter)
    list_select_related = ("message",)
    search_fields = ("key",)
    ordering = ("-pk",)
    show_full_result_count = False
    list_per_page = 50
    fields = (
        ("target", "status"),
        ("type", "message", "key", "seq"),
        ("attempts", "next_attempt_at", "delivered_at"),
        "last_error",
        "tries",
        "data",
    )
    readonly_fields = ("type", "tries", "data")
    actions = ("resend", "skip")

    @admin.display
    def type(self, delivery: OutboxDelivery) -> str:
        return delivery.message.type

    @admin.display(description="last attempts")
    def tries(self, delivery: OutboxDelivery) -> SafeString:
        return _pretty(delivery.log)

    @admin.display
    def data(self, delivery: OutboxDelivery) -> SafeString:
        return _pretty(delivery.message.data)

    def has_resend_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("billing.resend_outboxdelivery")

    @admin.action(description="Resend", permissions=["resend"])
    def resend(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return decide(
            self,
            request,
            queryset,
            form_class=ReasonForm,
            act=lambda delivery, actor, form: dead_letters.resend(delivery, actor, form["reason"]),
        )

    @admin.action(description="Skip (the target never hears of it)", permissions=["resend"])
    def skip(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return decide(
            self,
            request,
            queryset,
            form_class=ReasonForm,
            act=lambda delivery, actor, form: dead_letters.skip(delivery, actor, form["reason"]),
        )


@admin.register(PoisonMessage)
class PoisonMessageAdmin(SeeOnly, WithActions):
    list_display = ("position", "source", "error", "review", "created_at")
    list_filter = ("review", "source")
    ordering = ("-pk",)
    show_full_result_count = False
    list_per_page = 50
    fields = (("source", "position"), ("review", "error", "created_at"), "body_readable")
    readonly_fields = ("body_readable",)
    actions = ("retry", "dismiss")

    @admin.display(description="body")
    def body_readable(self, poison: PoisonMessage) -> SafeString:
        text = bytes(poison.body).decode(errors="backslashreplace")
        return format_html("<pre style='white-space: pre-wrap'>{}</pre>", text)

    def has_decide_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("billing.decide_poisonmessage")

    @admin.action(description="Retry", permissions=["decide"])
    def retry(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return decide(
            self,
            request,
            queryset,
            form_class=ReasonForm,
            act=lambda poison, actor, form: dead_letters.retry(poison, actor, form["reason"]),
        )

    @admin.action(description="Dismiss", permissions=["decide"])
    def dismiss(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return decide(
            self,
            request,
            queryset,
            form_class=ReasonForm,
            act=lambda poison, actor, form: dead_letters.dismiss(poison, actor, form["reason"]),
        )


def _pretty(value: Any) -> SafeString:
    return format_html("<pre>{}</pre>", json.dumps(value, indent=2, ensure_ascii=False))
