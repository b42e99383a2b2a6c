"""What runs now: lanes with owner and lease, the processes that hold them, turns."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import F, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.safestring import SafeString
from unfold.decorators import action, display

from sessions_app import lanes
from sessions_app.admin.clock import WithClock, moment, state_of
from sessions_app.clock import database_now
from sessions_app.models import Holder, Lane, Turn
from suzent_site.console import PlainDialog, leave_dialog
from suzent_site.shown import in_a_line, span


class LaneState(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in ("paused", "running", "stale", "due", "wanted", "failing")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Lane]) -> QuerySet[Lane]:
        now = database_now()
        match self.value():
            case "paused":
                return queryset.filter(pk__in=Lane.objects.paused().values("pk"))
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
    list_display: tuple[str, ...] = ("key", "state", "shown_owner", "lease_ends", "due", "failures", "epoch")
    list_filter = (LaneState,)
    search_fields = ("key__startswith",)
    search_help_text = "The beginning of a key, e.g. agent:planner"
    ordering = (F("paused_at").desc(nulls_last=True), F("lease_until").asc(nulls_last=True), "key")
    actions = ("pause_chosen", "resume_chosen",)
    actions_detail = ("pause", "resume",)

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        """Only the one of the two that would change something."""
        lane = self.find_row(request, object_id)
        useless = "sessions_app_lane_pause" if lane and lane.paused_at else "sessions_app_lane_resume"
        return [item for item in super().get_actions_detail(request, object_id) if item.action_name != useless]

    @display(description="State", label={"paused": "warning", "stale": "danger", "running": "success", "due": "info"})
    def state(self, obj: Lane) -> str:
        return state_of(obj, now=obj.seen_at)  # type: ignore[attr-defined]  # annotated by WithClock

    @display(description="Owner")
    def shown_owner(self, obj: Lane) -> SafeString:
        return in_a_line(obj.lease_owner or "—")

    @display(description="Lease ends", ordering="lease_until")
    def lease_ends(self, obj: Lane) -> str:
        return moment(obj.lease_until, obj)

    @display(description="Due", ordering="due_at")
    def due(self, obj: Lane) -> str:
        return moment(obj.due_at, obj)

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
        self.message_user(request, "Paused." if self._pause(request, self.row_of(request, object_id)) else "It was paused already.")
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
        self.message_user(request, "Resumed." if self._resume(request, self.row_of(request, object_id)) else "It was not paused.")
        return leave_dialog(request, reverse("admin:sessions_app_lane_change", args=[object_id]))

    @action(description="Pause", permissions=["act"])
    def pause_chosen(self, request: HttpRequest, queryset: QuerySet[Lane]) -> None:
        self.act_on_chosen(request, queryset, lambda lane: self._pause(request, lane), done="Paused")

    @action(description="Resume", permissions=["act"])
    def resume_chosen(self, request: HttpRequest, queryset: QuerySet[Lane]) -> None:
        self.act_on_chosen(request, queryset, lambda lane: self._resume(request, lane), done="Resumed")

    def _pause(self, request: HttpRequest, lane: Lane) -> bool:
        if not lanes.pause(lane.key, now=database_now()):
            return False
        self.log_change(request, lane, "Paused.")
        return True

    def _resume(self, request: HttpRequest, lane: Lane) -> bool:
        if not lanes.resume(lane.key, now=database_now()):
            return False
        self.log_change(request, lane, "Resumed.")
        return True


@admin.register(Holder)
class HolderAdmin(WithClock):
    list_display = ("owner", "kind", "host", "pid", "free", "beat")
    list_filter = ("kind",)
    ordering = ("-beat_at",)

    @display(description="Last beat", ordering="beat_at")
    def beat(self, obj: Holder) -> str:
        return moment(obj.beat_at, obj)


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
        return moment(obj.started_at, obj)

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
