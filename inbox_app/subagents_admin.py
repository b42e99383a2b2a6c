"""Tasks of sub-agents in the console: the list, a task's page, and the tree on a session's page."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.contrib.admin.utils import quote
from django.db.models import Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from unfold.decorators import action, display

from inbox_app.models import SubagentTask
from sessions_app import actions
from sessions_app.admin.clock import WithClock
from sessions_app.clock import database_now
from sessions_app.models import Session
from suzent_site.console import PlainDialog, leave_dialog, operator_name
from suzent_site.shown import age, as_json, in_a_line, label, span, whole

NEWEST_TASKS = 20
STATUS_COLORS = {
    "queued": "default", "running": "info", "completed": "success", "failed": "danger", "cancelled": "warning",
    "timed_out": "danger",
}  # fmt: skip


@admin.register(SubagentTask)
class SubagentTaskAdmin(WithClock):
    list_display = ("shown_title", "shown_status", "parent_link", "child_link", "shown_age", "shown_error")
    list_display_links = ("shown_title",)
    list_filter = ("status", ("project", admin.RelatedOnlyFieldListFilter))
    list_select_related = ("child",)
    search_fields = ("task_id",)
    search_help_text = "A task id, or the agent id of its parent or of its sub-agent; whole, not a part"
    ordering = ("-id",)
    actions = ("stop_chosen",)
    actions_detail = ("stop",)
    fieldsets = (
        (None, {"fields": ("task_id", "status_label", "shown_error_whole", "parent_link", "child_link", "project")}),
        ("Task", {"fields": ("shown_description", "shown_options")}),
        ("Result", {"fields": ("shown_result",)}),
        ("Times", {"fields": ("created_at", "started_at", "ended_at", "shown_age")}),
    )

    def get_queryset(self, request: HttpRequest) -> QuerySet[SubagentTask]:
        rows: QuerySet[SubagentTask] = super().get_queryset(request)
        return rows.select_related("child", "project")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[SubagentTask], search_term: str
    ) -> tuple[QuerySet[SubagentTask], bool]:
        """Whole ids, so that each look is one along an index."""
        if not (term := search_term.strip()):
            return queryset, False
        return queryset.filter(Q(task_id=term) | Q(parent=term) | Q(child=term)), False

    def get_actions_detail(self, request: HttpRequest, object_id: Any) -> list[Any]:
        """A task that has ended can no longer be stopped."""
        task = self.find_row(request, object_id)
        return [] if task is None or task.ended_at else list(super().get_actions_detail(request, object_id))

    @display(description="Task")
    def shown_title(self, obj: SubagentTask) -> SafeString:
        return in_a_line(obj.child.title or obj.task_id, limit=60)

    @display(description="Status", ordering="status", label=STATUS_COLORS)
    def shown_status(self, obj: SubagentTask) -> str:
        return obj.status

    @display(description="Status")
    def status_label(self, obj: SubagentTask) -> SafeString:
        return label(obj.status, STATUS_COLORS[obj.status])

    @display(description="Given by", ordering="parent")
    def parent_link(self, obj: SubagentTask) -> SafeString:
        return _session_link(obj.parent_id)

    @display(description="Sub-agent")
    def child_link(self, obj: SubagentTask) -> SafeString:
        return _session_link(obj.child_id)

    @display(description="Age", ordering="created_at")
    def shown_age(self, obj: SubagentTask) -> str:
        """How long it has been going on, or how long it took."""
        if obj.ended_at is not None:
            return f"took {span((obj.ended_at - obj.created_at).total_seconds())}"
        return age(obj.created_at, now=obj.seen_at)  # type: ignore[attr-defined]  # annotated by WithClock

    @display(description="Why it did not complete")
    def shown_error(self, obj: SubagentTask) -> SafeString | str:
        return in_a_line(obj.error, limit=60) if obj.error else "—"

    @display(description="Why it did not complete")
    def shown_error_whole(self, obj: SubagentTask) -> SafeString | str:
        return whole(obj.error) if obj.error else "—"

    @display(description="Description")
    def shown_description(self, obj: SubagentTask) -> SafeString:
        return whole(obj.description)

    @display(description="Options")
    def shown_options(self, obj: SubagentTask) -> SafeString:
        return as_json(obj.options)

    @display(description="Result")
    def shown_result(self, obj: SubagentTask) -> SafeString | str:
        return whole(obj.result) if obj.result else "—"

    @action(
        description="Stop",
        permissions=["act"],
        icon="stop_circle",
        dialog={
            "title": "Stop this task?",
            "description": "It ends as cancelled, and its parent is told that you did it. One that waits never starts.",
            "form_class": PlainDialog,
            "form_submit_text": "Stop",
        },
    )
    def stop(self, request: HttpRequest, form: PlainDialog, object_id: str) -> HttpResponse:
        asked = self._stop(request, self.row_of(request, object_id))
        self.message_user(request, "Asked to stop." if asked else "It was not running.")
        return leave_dialog(request, reverse("admin:inbox_app_subagenttask_change", args=[object_id]))

    @action(description="Stop", permissions=["act"])
    def stop_chosen(self, request: HttpRequest, queryset: QuerySet[SubagentTask]) -> None:
        self.act_on_chosen(request, queryset, lambda task: self._stop(request, task), done="Asked to stop")

    def _stop(self, request: HttpRequest, task: SubagentTask) -> bool:
        return actions.stop_session(task.child, now=database_now(), who=operator_name(request))


def _session_link(agent_id: str) -> SafeString:
    return format_html('<a href="{}">{}</a>', reverse("admin:sessions_app_session_change", args=[quote(agent_id)]), agent_id)


def family_of(session: Session) -> dict[str, Any]:
    """For a session's page: the task it was made for, and the newest that it has given."""
    given = list(SubagentTask.objects.filter(parent=session).select_related("child").order_by("-id")[: NEWEST_TASKS + 1])
    return {
        "agent_id": session.pk,
        "own": SubagentTask.objects.filter(child=session).first(),
        "given": given[:NEWEST_TASKS],
        "has_more": len(given) > NEWEST_TASKS,
    }
