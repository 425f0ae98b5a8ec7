from __future__ import annotations

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse

from webhooks.admin.base import ReasonForm, SeeOnly, WithActions, decide
from webhooks.api.tokens import revoke_token
from webhooks.audit import Actor
from webhooks.models import ServiceToken
from webhooks.review import CannotDecide


@admin.register(ServiceToken)
class ServiceTokenAdmin(SeeOnly, WithActions):
    """Tokens are made on the command line, which shows them once."""

    list_display = ("name", "scopes", "created_at", "expires_at", "revoked_at")
    # Not even the hash is anybody's business.
    fields = ("name", "scopes", "created_at", "expires_at", "revoked_at")
    readonly_fields = fields
    ordering = ("-pk",)
    actions = ("revoke",)

    def has_revoke_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm("webhooks.revoke_servicetoken")

    @admin.action(description="Revoke", permissions=["revoke"])
    def revoke(self, request: HttpRequest, queryset: QuerySet[ServiceToken]) -> HttpResponse | None:
        return decide(
            self,
            request,
            queryset,
            form_class=ReasonForm,
            act=lambda token, actor, form: _revoke(token, actor, form["reason"]),
        )


def _revoke(token: ServiceToken, actor: Actor, reason: str) -> None:
    if not revoke_token(token, actor, reason):
        raise CannotDecide("This token was revoked before.")
