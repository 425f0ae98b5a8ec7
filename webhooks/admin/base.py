from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import admin, messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import Model, Q, QuerySet, UUIDField, Value
from django.db.models.functions import Lower
from django.http import HttpRequest
from django.template.response import TemplateResponse
from django.utils.html import format_html
from django.utils.safestring import SafeString

from billing.codes import WAITING
from billing.purchases.base import Act
from webhooks.audit import Actor
from webhooks.outcomes import Outcome
from webhooks.providers import all_providers
from webhooks.providers.base import Result
from webhooks.review import CannotDecide

MAX_SELECTED = 200


class SeeOnly:
    """Rows that only the product itself writes."""

    def has_add_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


class ExactSearch(admin.ModelAdmin):
    """Ids and addresses as they are: what an index finds at once, and what ids mean. E-mails are
    compared without regard to case."""

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        term = search_term.strip()
        if not term:
            return queryset, False
        wanted = Q(pk__in=[])
        for name in self.search_fields:
            if name.endswith("email"):
                wanted |= Q((f"{name}__lower", Lower(Value(term))))
            elif not isinstance(self.opts.get_field(name), UUIDField) or _is_uuid(term):
                wanted |= Q((name, term))
        return queryset.filter(wanted), False


def _is_uuid(text: str) -> bool:
    try:
        UUID(text)
    except ValueError:
        return False
    return True


class ProviderFilter(admin.SimpleListFilter):
    """From the code: asking a large table which values it has would take long."""

    title = "provider"
    parameter_name = "provider"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(slug, slug) for slug in all_providers()]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        return queryset.filter(provider=self.value()) if self.value() else queryset


class WithActions(admin.ModelAdmin):
    """The list's actions, offered on a row's own page as well, as far as they fit it."""

    change_form_template = "admin/change_form_with_actions.html"

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        # The first choice is the empty one of the list's drop-down.
        choices = self.get_action_choices(request)[1:]
        row = context.get("original")
        context["row_actions"] = [
            (name, title) for name, title in choices if row is None or self.fits(name, row)
        ]
        return super().render_change_form(request, context, *args, **kwargs)

    def fits(self, action: str, row: Any) -> bool:
        return True


class ReasonForm(forms.Form):
    reason = forms.CharField(max_length=500, help_text="Goes into the audit log.")


def decide(
    modeladmin: admin.ModelAdmin,
    request: HttpRequest,
    queryset: QuerySet[Any],
    *,
    form_class: type[forms.Form],
    act: Callable[[Any, Actor, dict[str, Any]], Outcome | None],
) -> TemplateResponse | None:
    """Ask for what the act needs, then do it to each of the selected rows and say how it went."""
    action = request.POST["action"]
    title = dict(modeladmin.get_action_choices(request))[action]
    if queryset.count() > MAX_SELECTED:
        modeladmin.message_user(request, f"At most {MAX_SELECTED} at once.", messages.ERROR)
        return None
    form = form_class(request.POST if "decided" in request.POST else None)
    if not form.is_valid():
        context = {
            **modeladmin.admin_site.each_context(request),
            "title": title,
            "form": form,
            "rows": queryset,
            "action": action,
            "checkbox": ACTION_CHECKBOX_NAME,
            "opts": modeladmin.model._meta,
            "media": modeladmin.media + form.media,
        }
        return TemplateResponse(request, "admin/decide.html", context)
    actor = Actor.staff(request.user)  # type: ignore[arg-type]
    for row in queryset:
        level, text = _outcome_text(row, partial(act, row, actor, form.cleaned_data))
        modeladmin.message_user(request, text, level)
    return None


_DONE = {
    Act.GAVE: "applied",
    Act.TOOK_BACK: "taken back",
    Act.SHORTENED: "shortened",
    Act.REINSTATED: "reinstated",
}


def _outcome_text(row: Model, act: Callable[[], Outcome | None]) -> tuple[int, SafeString]:
    try:
        outcome = act()
    except CannotDecide as refusal:
        return messages.ERROR, format_html("{}: {}", row, refusal)
    if outcome is None:
        return messages.SUCCESS, format_html("{}: done", row)
    told = outcome.message or ""
    if outcome.result is Result.DUPLICATE:
        return messages.WARNING, format_html("{}: nothing to do, it is settled", row)
    if outcome.change.act:
        done, end = _DONE[outcome.change.act], outcome.change.subscription_end_after
        ends = f", the subscription ends {end:%Y-%m-%d %H:%M} UTC" if end else ""
        return messages.SUCCESS, format_html("{}: {}{}", row, done, ends)
    good = outcome.result in (Result.PROCESSED, Result.IGNORED) or outcome.code in WAITING
    level = messages.INFO if good else messages.ERROR
    return level, format_html("{}: {} {} {}", row, outcome.result, outcome.code or "", told)
