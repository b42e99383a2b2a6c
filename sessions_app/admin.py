"""The console's pages for who can be reached: projects, sessions, lanes, their holders, turns and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, ClassVar

from django import forms
from django.conf import settings
from django.contrib import admin
from django.db.models import DateTimeField, Exists, F, Model, OuterRef, QuerySet, Value
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils import timezone
from django.utils.safestring import SafeString
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminSelectWidget

from sessions_app import actions, lanes
from sessions_app.clock import database_now
from sessions_app.models import ApiToken, Holder, Lane, Project, Session, TranscriptEntry, Turn
from suzent_site.console import ConsoleAdmin, EngineOwned, PlainDialog, RefusableForm, leave_dialog
from suzent_site.shown import age, in_a_line, span

NEWEST_ENTRIES = 100
NEWEST_TURNS = 20


class WithClock(EngineOwned):
    """Every row has ``seen_at``, the database's clock: read once for the page, since leases are measured by it."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        now = Value(database_now(), output_field=DateTimeField())
        return super().get_queryset(request).annotate(seen_at=now)  # type: ignore[no-any-return]


class ProjectForm(RefusableForm):
    def clean_runtimes(self) -> list[str]:
        names = self.cleaned_data["runtimes"]
        if not isinstance(names, list) or not names or not all(name in settings.RUNTIMES for name in names):
            raise forms.ValidationError(f"A JSON list with some of {', '.join(settings.RUNTIMES)}.")
        return names

    def clean_roots(self) -> list[str]:
        roots = self.cleaned_data["roots"] or []
        if not isinstance(roots, list) or not all(isinstance(root, str) and root.startswith("/") for root in roots):
            raise forms.ValidationError('A JSON list of absolute directories, e.g. ["/srv/work"].')
        return roots


@admin.register(Project)
class ProjectAdmin(ConsoleAdmin):
    form = ProjectForm
    list_display = ("slug", "shown_name", "shown_runtimes", "archived_at")
    search_fields = ("slug__startswith", "name__icontains")
    ordering = ("slug",)
    fields = ("slug", "name", "runtimes", "roots")

    def get_readonly_fields(self, request: HttpRequest, obj: Project | None = None) -> Sequence[str]:
        return ("slug",) if obj else ()

    def save_model(self, request: HttpRequest, obj: Project, form: forms.ModelForm[Project], change: bool) -> None:
        if change:
            obj.save(update_fields=["name", "runtimes", "roots"])
        else:
            actions.create_project(obj.slug, name=obj.name, runtimes=obj.runtimes, roots=obj.roots)

    @display(description="Name")
    def shown_name(self, obj: Project) -> SafeString:
        return in_a_line(obj.name)

    @display(description="Runtimes")
    def shown_runtimes(self, obj: Project) -> SafeString:
        return in_a_line(", ".join(map(str, obj.runtimes)))


class SessionForm(RefusableForm):
    runtime = forms.ChoiceField(choices=lambda: [(name, name) for name in settings.RUNTIMES], widget=UnfoldAdminSelectWidget)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "agent_id" in self.fields:
            self.fields["agent_id"].required = False
            self.fields["agent_id"].help_text = "Its address. Left empty, one is made (ses_…). It cannot change later."


class SessionStatus(admin.SimpleListFilter):
    title = "status"
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [("active", "active"), ("idle", "idle"), ("archived", "archived")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Session]) -> QuerySet[Session]:
        match self.value():
            case "active":
                return queryset.filter(archived_at=None, runs=True)
            case "idle":
                return queryset.filter(archived_at=None, runs=False)
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
    actions_detail: ClassVar[list[str]] = ["stop", "archive"]
    actions: ClassVar[list[str]] = ["stop_chosen", "archive_chosen"]

    def get_queryset(self, request: HttpRequest) -> QuerySet[Session]:
        running = Turn.objects.running().filter(session=OuterRef("pk"))
        return super().get_queryset(request).annotate(runs=Exists(running))  # type: ignore[no-any-return]

    def get_fields(self, request: HttpRequest, obj: Session | None = None) -> Sequence[str]:
        asked = ("agent_id", "project", "title", "runtime", "config")
        return asked if obj is None else (*asked, "kind", "parent", "archived_at", "created_at", "updated_at")

    def get_readonly_fields(self, request: HttpRequest, obj: Session | None = None) -> Sequence[str]:
        return () if obj is None else ("agent_id", "project", "kind", "parent", "archived_at", "created_at", "updated_at")

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return super().has_change_permission(request, obj) and getattr(obj, "archived_at", None) is None

    def save_model(self, request: HttpRequest, obj: Session, form: forms.ModelForm[Session], change: bool) -> None:
        asked = {name: form.cleaned_data[name] for name in ("title", "runtime", "config")}
        asked["config"] = asked["config"] or {}
        if change:
            actions.change_session(Session.objects.get(pk=obj.pk), now=timezone.now(), **asked)
            return
        made = actions.open_session(obj.project, now=database_now(), agent_id=obj.agent_id, **asked)
        obj.agent_id = made.agent_id

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        context = {**(extra_context or {}), "conversation": conversation_of(object_id, before=request.GET.get("before", ""))}
        return super().change_view(request, object_id, form_url, context)  # type: ignore[no-any-return]

    @display(description="Title")
    def shown_title(self, obj: Session) -> SafeString:
        return in_a_line(obj.title, limit=60)

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
        session = get_object_or_404(Session, pk=object_id)
        asked = actions.stop_session(session, now=database_now())
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
        done = self._archive(request, get_object_or_404(Session, pk=object_id))
        self.message_user(request, "Archived." if done else "It was archived already.")
        return leave_dialog(request, reverse("admin:sessions_app_session_change", args=[object_id]))

    @action(description="Stop", permissions=["act"])
    def stop_chosen(self, request: HttpRequest, queryset: QuerySet[Session]) -> None:
        self.act_on_chosen(request, queryset, lambda session: actions.stop_session(session, now=database_now()), done="Asked to stop")

    @action(description="Archive", permissions=["act"])
    def archive_chosen(self, request: HttpRequest, queryset: QuerySet[Session]) -> None:
        self.act_on_chosen(request, queryset, lambda session: self._archive(request, session), done="Archived")

    def _archive(self, request: HttpRequest, session: Session) -> bool:
        if not actions.archive_session(session, now=database_now()):
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


class LaneState(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in ("paused", "running", "stale", "due", "wanted", "failing")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Lane]) -> QuerySet[Lane]:
        now = database_now()
        match self.value():
            case "paused":
                return queryset.filter(paused_at__isnull=False)
            case "running":
                return queryset.filter(lease_until__gt=now)
            case "stale":
                return queryset.filter(lease_until__lte=now)
            case "due":
                return queryset.filter(pk__in=Lane.objects.due(now).values("pk"))
            case "wanted":
                return queryset.filter(wanted_until__gt=now)
            case "failing":
                return queryset.filter(failures__gt=0)
        return queryset


@admin.register(Lane)
class LaneAdmin(WithClock):
    list_display: tuple[str, ...] = ("key", "state", "shown_owner", "lease_ends", "due", "wanted", "failures", "epoch")
    list_filter = (LaneState,)
    search_fields = ("key__startswith",)
    search_help_text = "The beginning of a key, e.g. agent:planner"
    ordering = (F("paused_at").desc(nulls_last=True), F("lease_until").asc(nulls_last=True), "key")
    actions: ClassVar[list[str]] = ["pause_chosen", "resume_chosen"]
    actions_detail: ClassVar[list[str]] = ["pause", "resume"]

    @display(description="State", label={"paused": "warning", "stale": "danger", "running": "success", "due": "info"})
    def state(self, obj: Lane) -> str:
        return state_of(obj, now=obj.seen_at)  # type: ignore[attr-defined]  # annotated by WithClock

    @display(description="Owner")
    def shown_owner(self, obj: Lane) -> SafeString:
        return in_a_line(obj.lease_owner or "—")

    @display(description="Lease ends", ordering="lease_until")
    def lease_ends(self, obj: Lane) -> str:
        return _moment(obj.lease_until, obj)

    @display(description="Due", ordering="due_at")
    def due(self, obj: Lane) -> str:
        return _moment(obj.due_at, obj)

    @display(description="Wanted until")
    def wanted(self, obj: Lane) -> str:
        return _moment(obj.wanted_until, obj)

    @action(
        description="Pause",
        permissions=["act"],
        icon="pause_circle",
        dialog={
            "title": "Pause this lane?",
            "description": "The running turn ends as usual; then nothing starts here until you resume it.",
            "form_class": PlainDialog,
            "form_submit_text": "Pause",
        },
    )
    def pause(self, request: HttpRequest, form: PlainDialog, object_id: str) -> HttpResponse:
        self.message_user(request, "Paused." if self._pause(request, object_id) else "It was paused already.")
        return leave_dialog(request, reverse("admin:sessions_app_lane_change", args=[object_id]))

    @action(
        description="Resume",
        permissions=["act"],
        icon="play_circle",
        dialog={
            "title": "Resume this lane?",
            "description": "What waits here runs at once.",
            "form_class": PlainDialog,
            "form_submit_text": "Resume",
        },
    )
    def resume(self, request: HttpRequest, form: PlainDialog, object_id: str) -> HttpResponse:
        self.message_user(request, "Resumed." if self._resume(request, object_id) else "It was not paused.")
        return leave_dialog(request, reverse("admin:sessions_app_lane_change", args=[object_id]))

    @action(description="Pause", permissions=["act"])
    def pause_chosen(self, request: HttpRequest, queryset: QuerySet[Lane]) -> None:
        self.act_on_chosen(request, queryset, lambda lane: self._pause(request, lane.key), done="Paused")

    @action(description="Resume", permissions=["act"])
    def resume_chosen(self, request: HttpRequest, queryset: QuerySet[Lane]) -> None:
        self.act_on_chosen(request, queryset, lambda lane: self._resume(request, lane.key), done="Resumed")

    def _pause(self, request: HttpRequest, key: str) -> bool:
        lane = get_object_or_404(Lane, pk=key)
        if not lanes.pause(lane.key, now=database_now()):
            return False
        self.log_change(request, lane, "Paused.")
        return True

    def _resume(self, request: HttpRequest, key: str) -> bool:
        lane = get_object_or_404(Lane, pk=key)
        if not lanes.resume(lane.key, now=database_now()):
            return False
        self.log_change(request, lane, "Resumed.")
        return True


def state_of(lane: Lane, *, now: datetime) -> str:
    """In one word: a lease that has passed is stale, whatever its owner may believe."""
    if lane.lease_until:
        return "running" if lane.lease_until > now else "stale"
    if lane.paused_at:
        return "paused"
    return "due" if lane.due_at and lane.due_at <= now else "idle"


def _moment(at: datetime | None, row: Any) -> str:
    """``4 s ago`` or ``in 4 s``, by the clock that the row was read with."""
    if at is None:
        return "—"
    passed = age(at, now=row.seen_at)
    return passed if passed.startswith("in ") else f"{passed} ago"


@admin.register(Holder)
class HolderAdmin(WithClock):
    list_display = ("owner", "kind", "host", "pid", "free", "beat")
    list_filter = ("kind",)
    ordering = ("-beat_at",)

    @display(description="Last beat", ordering="beat_at")
    def beat(self, obj: Holder) -> str:
        return _moment(obj.beat_at, obj)


@admin.register(Turn)
class TurnAdmin(WithClock):
    list_display = ("id", "session", "origin", "shown_state", "started", "lasted", "stop_requested_at", "shown_error")
    list_filter = ("state", "origin")
    search_fields = ("=session__agent_id",)
    search_help_text = "An agent id"
    list_select_related = ("session",)
    ordering = ("-id",)
    fields = ("session", "origin", "message_ids", "state", "epoch", "started_at", "finished_at", "stop_requested_at", "error_text", "usage")
    readonly_fields = ("error_text",)

    @display(description="State", label={"running": "info", "committed": "success", "failed": "danger", "stopped": "warning"})
    def shown_state(self, obj: Turn) -> str:
        return obj.state

    @display(description="Started", ordering="started_at")
    def started(self, obj: Turn) -> str:
        return _moment(obj.started_at, obj)

    @display(description="Lasted")
    def lasted(self, obj: Turn) -> str:
        until = obj.finished_at or obj.seen_at  # type: ignore[attr-defined]
        return span((until - obj.started_at).total_seconds())

    @display(description="Error")
    def shown_error(self, obj: Turn) -> SafeString:
        return in_a_line(obj.error, limit=60)

    @display(description="Error")
    def error_text(self, obj: Turn) -> SafeString:
        return in_a_line(obj.error, limit=4000)


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
    actions: ClassVar[list[str]] = ["revoke_chosen"]

    def get_fields(self, request: HttpRequest, obj: ApiToken | None = None) -> Sequence[str]:
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
