from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, ClassVar

from django import forms
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from subscriptions.models import Plan
from webhooks import archive, review
from webhooks.admin.base import (
    ExactSearch,
    ProviderFilter,
    ReasonForm,
    SeeOnly,
    WithActions,
    decide,
)
from webhooks.audit import Actor
from webhooks.models import ReviewItem, ReviewState, WebhookEvent
from webhooks.outcomes import Outcome


class OptionalReasonForm(forms.Form):
    reason = forms.CharField(max_length=500, required=False, help_text="Goes into the audit log.")


class ApplyAnywayForm(ReasonForm):
    plan = forms.ModelChoiceField(
        queryset=Plan.objects.all(),
        required=False,
        help_text="Needed only where the payment names a plan that does not exist.",
    )


class EventAdmin(SeeOnly, ExactSearch, WithActions):
    list_display: tuple[str, ...] = (
        "key",
        "status",
        "error_code",
        "review",
        "external_payment_id",
        "attempts",
        "deliveries",
        "received_at",
    )
    list_filter: ClassVar[tuple[Any, ...]] = (
        "review",
        "status",
        "error_code",
        ProviderFilter,
        "signature_valid",
        "is_test",
    )
    search_fields = ("external_event_id", "external_payment_id", "merchant_uid", "id")
    ordering = ("-received_at",)
    show_full_result_count = False
    list_per_page = 50
    fieldsets = (
        (
            None,
            {
                "fields": (
                    ("status", "review"),
                    ("error_code", "error_message"),
                    ("received_at", "processed_at", "occurred_at"),
                    ("attempts", "next_attempt_at", "deliveries"),
                    "conflict_of",
                )
            },
        ),
        (
            "What it says",
            {
                "fields": (
                    ("provider", "event_type", "is_test"),
                    ("external_event_id", "external_payment_id", "merchant_uid"),
                    "payload_readable",
                )
            },
        ),
        (
            "Proof",
            {
                "fields": (
                    ("signature_valid", "signature_method", "key_id", "source_ip"),
                    "headers_readable",
                    "payload_hash",
                    "fingerprint",
                    "raw_body_readable",
                    "archived_in",
                )
            },
        ),
    )
    readonly_fields = ("payload_readable", "headers_readable", "raw_body_readable")
    actions = (
        "reprocess",
        "apply_anyway",
        "keep",
        "shorten",
        "revoke",
        "reinstate",
        "dismiss",
        "reopen",
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        rows = super().get_queryset(request)
        # The list need not fetch megabytes of bodies.
        return rows.defer("payload", "raw_body", "headers")

    @admin.display(description="event")
    def key(self, event: WebhookEvent) -> str:
        """Short where the event has no id of its own: 64 digits would hide the other columns."""
        return f"{event.provider}:{event.external_event_id or event.payload_hash[:12] + '…'}"

    @admin.display(description="payload")
    def payload_readable(self, event: WebhookEvent) -> SafeString:
        return _readable(event, lambda kept: _indented(kept.payload))

    @admin.display(description="headers")
    def headers_readable(self, event: WebhookEvent) -> SafeString:
        return _readable(event, lambda kept: _indented(kept.headers))

    @admin.display(description="raw body")
    def raw_body_readable(self, event: WebhookEvent) -> SafeString:
        return _readable(event, lambda kept: kept.raw_body.decode(errors="backslashreplace"))

    def fits(self, action: str, row: WebhookEvent) -> bool:
        return review.fits(action, row)

    def has_reprocess_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("webhooks.reprocess_webhookevent")

    def has_decide_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("webhooks.decide_webhookevent")

    @admin.action(description="Reprocess", permissions=["reprocess"])
    def reprocess(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return decide(
            self,
            request,
            queryset,
            form_class=OptionalReasonForm,
            act=lambda event, actor, form: review.reprocess(event, actor, form["reason"]),
        )

    @admin.action(description="Apply anyway", permissions=["decide"])
    def apply_anyway(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return decide(
            self,
            request,
            queryset,
            form_class=ApplyAnywayForm,
            act=lambda event, actor, form: review.apply_anyway(
                event, actor, form["reason"], form["plan"]
            ),
        )

    @admin.action(description="Keep what was given", permissions=["decide"])
    def keep(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return self._decide(request, queryset, review.keep)

    @admin.action(description="Shorten in proportion to the refund", permissions=["decide"])
    def shorten(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return self._decide(request, queryset, review.shorten)

    @admin.action(description="Revoke what was given", permissions=["decide"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return self._decide(request, queryset, review.revoke)

    @admin.action(description="Reinstate what was taken back", permissions=["decide"])
    def reinstate(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return self._decide(request, queryset, review.reinstate)

    @admin.action(description="Dismiss", permissions=["decide"])
    def dismiss(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return self._decide(request, queryset, review.dismiss)

    @admin.action(description="Reopen", permissions=["decide"])
    def reopen(self, request: HttpRequest, queryset: QuerySet[Any]) -> HttpResponse | None:
        return self._decide(request, queryset, review.reopen)

    def _decide(
        self,
        request: HttpRequest,
        queryset: QuerySet[Any],
        act: Callable[[WebhookEvent, Actor, str], Outcome | None],
    ) -> HttpResponse | None:
        return decide(
            self,
            request,
            queryset,
            form_class=ReasonForm,
            act=lambda event, actor, form: act(event, actor, form["reason"]),
        )


@admin.register(WebhookEvent)
class WebhookEventAdmin(EventAdmin):
    pass


@admin.register(ReviewItem)
class ReviewItemAdmin(EventAdmin):
    """Amount mismatches and everything else that waits for a person."""

    list_display = (
        "key",
        "error_code",
        "error_message",
        "external_payment_id",
        "received_at",
    )
    list_filter = ("error_code", ProviderFilter)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).filter(review=ReviewState.OPEN)


def _readable(event: WebhookEvent, show: Callable[[archive.Kept], str]) -> SafeString:
    """From the row or the archive, which is read once per page; or why it cannot be shown."""
    try:
        kept: archive.Kept = vars(event).get("kept") or archive.read(event)
    except archive.ArchiveError as error:
        return format_html("<em>{}</em>", error)
    vars(event)["kept"] = kept
    return format_html("<pre style='white-space: pre-wrap'>{}</pre>", show(kept))


def _indented(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False)
