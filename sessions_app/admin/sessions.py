"""Sessions: opened, changed, stopped and archived through actions; the page shows the whole conversation."""

from __future__ import annotations

from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin
from django.db.models import Exists, Model, OuterRef, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminSelectWidget

from sessions_app import actions
from sessions_app.admin.clock import state_of
from sessions_app.clock import database_now
from sessions_app.models import ApiToken, Lane, Session, TranscriptEntry, Turn
from suzent_site.console import ConsoleAdmin, PlainDialog, RefusableForm, leave_dialog, operator_name
from suzent_site.shown import age, as_json, hides, in_a_line

NEWEST_ENTRIES = 100
NEWEST_TURNS = 20


class SessionForm(RefusableForm):
    runtime = forms.ChoiceField(choices=lambda: [(name, name) for name in settings.RUNTIMES], widget=UnfoldAdminSelectWidget)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "agent_id" in self.fields:
            self.fields["agent_id"].required = False
            self.fields["agent_id"].help_text = "Its address. Left empty, one is made (ses_…). It cannot change later."
        if "config" in self.fields:
            self.fields["config"].help_text = 'What its runtime is told. {"batch": true}: one turn takes all that waits.'


class SessionStatus(admin.SimpleListFilter):
    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("active", "active"), ("idle", "idle"), ("archived", "archived")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Session]) -> QuerySet[Session]:
        active = Session.objects.active().values("pk")
        match self.value():
            case "active":
                return queryset.filter(pk__in=active)
            case "idle":
                return queryset.filter(archived_at=None).exclude(pk__in=active)
            case "archived":
                return queryset.filter(archived_at__isnull=False)
        return queryset


@admin.register(Session)
class SessionAdmin(ConsoleAdmin):
    """The higher layers add what they know of a session's mail, see inbox_app/admin.py."""

    form = SessionForm
    list_display: tuple[str, ...] = ("agent_id", "project", "shown_title", "kind", "status", "updated")
    list_filter = (SessionStatus, "kind", ("project", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("project",)
    search_fields = ("agent_id__startswith", "title__icontains")
    ordering = ("-updated_at", "agent_id")
    autocomplete_fields = ("project",)
    change_form_outer_after_template = "admin/sessions_app/session/conversation.html"
    actions_detail = ("stop", "archive",)
    actions = ("stop_chosen", "archive_chosen",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Session]:
        running = Turn.objects.running().filter(session=OuterRef("pk"))
        return super().get_queryset(request).annotate(runs=Exists(running))  # type: ignore[no-any-return]

    def get_fields(self, request: HttpRequest, obj: Session | None = None) -> tuple[str, ...]:
        if obj is None:
            return ("agent_id", "project", "title", "runtime", "config")
        editable = self.has_change_permission(request, obj)
        told = ["title", "runtime", "config"] if editable else ["shown_title", "runtime", "shown_config"]
        if editable and hides(obj.title):
            told.insert(1, "laid_open_title")
        return ("agent_id", "project", *told, "kind", "parent", "archived_at", "created_at", "updated_at")

    def get_readonly_fields(self, request: HttpRequest, obj: Session | None = None) -> tuple[str, ...]:
        made = ("agent_id", "project", "kind", "parent", "archived_at", "created_at", "updated_at")
        return () if obj is None else (*made, "shown_title", "laid_open_title", "shown_config")

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return super().has_change_permission(request, obj) and getattr(obj, "archived_at", None) is None

    def save_model(self, request: HttpRequest, obj: Session, form: forms.ModelForm[Session], change: bool) -> None:
        asked = {name: form.cleaned_data[name] for name in ("title", "runtime", "config")}
        asked["config"] = asked["config"] or {}
        if change:
            actions.change_session(Session.objects.get(pk=obj.pk), now=database_now(), **asked)
            return
        made = actions.open_session(obj.project, now=database_now(), agent_id=obj.agent_id, **asked)
        obj.agent_id = made.agent_id

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], add: bool = False, change: bool = False, form_url: str = "", obj: Any = None
    ) -> HttpResponse:
        if obj is not None:
            context["conversation"] = conversation_of(obj.pk, before=request.GET.get("before", ""))
        return super().render_change_form(request, context, add, change, form_url, obj)

    @display(description="Title")
    def shown_title(self, obj: Session) -> SafeString:
        return in_a_line(obj.title, limit=60)

    @display(description="What the title hides")
    def laid_open_title(self, obj: Session) -> SafeString:
        return in_a_line(obj.title, limit=len(obj.title))

    @display(description="Config")
    def shown_config(self, obj: Session) -> SafeString:
        return as_json(obj.config)

    @display(description="Status", label={"active": "success", "idle": "info", "archived": "default"})
    def status(self, obj: Session) -> str:
        if obj.archived_at:
            return "archived"
        return "active" if obj.runs else "idle"  # type: ignore[attr-defined]  # annotated above

    @display(description="Updated", ordering="updated_at")
    def updated(self, obj: Session) -> str:
        return f"{age(obj.updated_at, now=timezone.now())} ago"

    @action(
        description="Stop",
        permissions=["act"],
        icon="stop_circle",
        dialog={
            "title": "Stop this session?",
            "description": "Its turn and those of its descendants are asked to stop. What is waiting stays and runs next.",
            "form_class": PlainDialog,
            "form_submit_text": "Stop",
        },
    )
    def stop(self, request: HttpRequest, form: PlainDialog, object_id: str) -> HttpResponse:
        session = self.row_of(request, object_id)
        asked = actions.stop_session(session, now=database_now(), who=operator_name(request))
        if asked:
            self.log_change(request, session, "Asked to stop.")
        self.message_user(request, "Asked to stop." if asked else "Nothing of it was running.")
        return leave_dialog(request, reverse("admin:sessions_app_session_change", args=[object_id]))

    @action(
        description="Archive",
        permissions=["act"],
        icon="archive",
        dialog={
            "title": "Archive this session?",
            "description": "For good: its address is never used again and its waiting mail fails as target_gone.",
            "form_class": PlainDialog,
            "form_submit_text": "Archive",
        },
    )
    def archive(self, request: HttpRequest, form: PlainDialog, object_id: str) -> HttpResponse:
        done = self._archive(request, self.row_of(request, object_id))
        self.message_user(request, "Archived." if done else "It was archived already.")
        return leave_dialog(request, reverse("admin:sessions_app_session_change", args=[object_id]))

    @action(description="Stop", permissions=["act"])
    def stop_chosen(self, request: HttpRequest, queryset: QuerySet[Session]) -> None:
        self.act_on_chosen(request, queryset, lambda session: actions.stop_session(session, now=database_now(), who=operator_name(request)), done="Asked to stop")

    @action(description="Archive", permissions=["act"])
    def archive_chosen(self, request: HttpRequest, queryset: QuerySet[Session]) -> None:
        self.act_on_chosen(request, queryset, lambda session: self._archive(request, session), done="Archived")

    def _archive(self, request: HttpRequest, session: Session) -> bool:
        if not actions.archive_session(session, now=database_now(), who=operator_name(request)):
            return False
        self.log_change(request, session, "Archived.")
        return True


def conversation_of(agent_id: str, *, before: str) -> dict[str, Any]:
    """The newest entries of a session (or those before a position), its newest turns, its lane and its tokens."""
    entries = TranscriptEntry.objects.filter(session=agent_id).order_by("-seq")
    if before.isdecimal():
        entries = entries.filter(seq__lt=min(int(before), 2**62))
    newest = list(entries[: NEWEST_ENTRIES + 1])
    lane, now = Lane.objects.filter(key=f"agent:{agent_id}").first(), database_now()
    return {
        "entries": newest[:NEWEST_ENTRIES][::-1],
        "older_than": newest[NEWEST_ENTRIES - 1].seq if len(newest) > NEWEST_ENTRIES else None,
        "is_newest": not before,
        "turns": Turn.objects.filter(session=agent_id).order_by("-id")[:NEWEST_TURNS],
        "lane": lane,
        "lane_state": lane and state_of(lane, now=now),
        "tokens": ApiToken.objects.filter(session=agent_id).order_by("-created_at")[:NEWEST_TURNS],
        "now": now,
    }
