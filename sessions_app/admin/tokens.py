"""Bearer tokens: minted and shown once, then only revoked."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import admin
from django.db.models import Model, QuerySet
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.utils import timezone
from unfold.decorators import action, display

from sessions_app import actions
from sessions_app.models import ApiToken
from suzent_site.console import ConsoleAdmin, RefusableForm


class TokenForm(RefusableForm):
    def clean(self) -> dict[str, Any] | None:
        cleaned = super().clean() or {}
        project, session = cleaned.get("project"), cleaned.get("session")
        if project and session and session.project_id != project.pk:
            self.add_error("session", "It belongs to another project.")
        return cleaned


@admin.register(ApiToken)
class TokenAdmin(ConsoleAdmin):
    """Minted here and shown once; afterwards only revoked."""

    form = TokenForm
    list_display = ("hint", "project", "session", "state", "created_at", "last_used_at", "expires_at")
    list_filter = (("project", admin.RelatedOnlyFieldListFilter),)
    list_select_related = ("project", "session")
    search_fields = ("=session__agent_id", "hint__startswith")
    ordering = ("-created_at",)
    autocomplete_fields = ("project", "session")
    actions = ("revoke_chosen",)
    kept_back = frozenset({"digest"})

    def get_fields(self, request: HttpRequest, obj: ApiToken | None = None) -> tuple[str, ...]:
        asked = ("project", "session", "expires_at")
        return asked if obj is None else ("hint", *asked, "created_at", "last_used_at", "revoked_at")

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self.has_act_permission(request) or super().has_view_permission(request, obj)

    def save_model(self, request: HttpRequest, obj: ApiToken, form: forms.ModelForm[ApiToken], change: bool) -> None:
        minted = actions.mint_token(obj.project, now=timezone.now(), session=obj.session, expires_at=obj.expires_at)
        obj.pk, obj.hint = minted.token.pk, minted.token.hint
        request.minted = minted.secret  # type: ignore[attr-defined]

    def response_add(self, request: HttpRequest, obj: ApiToken, post_url_continue: str | None = None) -> HttpResponse:
        """The token is in this one page only: no redirect, no message kept in a cookie, nothing a cache may keep."""
        context = {
            **self.admin_site.each_context(request),
            "title": "Token made",
            "opts": self.opts,
            "token": request.minted,  # type: ignore[attr-defined]
            "made": obj,
        }
        return TemplateResponse(request, "admin/sessions_app/apitoken/minted.html", context, headers={"Cache-Control": "no-store"})

    @display(description="State", label={"usable": "success", "expired": "warning", "revoked": "danger"})
    def state(self, obj: ApiToken) -> str:
        if obj.revoked_at:
            return "revoked"
        return "expired" if obj.expires_at and obj.expires_at <= timezone.now() else "usable"

    @action(description="Revoke", permissions=["act"])
    def revoke_chosen(self, request: HttpRequest, queryset: QuerySet[ApiToken]) -> None:
        self.act_on_chosen(request, queryset, lambda token: actions.revoke_token(token, now=timezone.now()), done="Revoked")
