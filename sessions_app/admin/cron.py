"""Cron jobs, made and edited through actions, and their runs, which only the engine writes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.safestring import SafeString
from unfold.decorators import action, display
from unfold.widgets import UnfoldAdminSelectWidget, UnfoldAdminTextInputWidget

from sessions_app.clock import database_now
from sessions_app.cron import actions, announcements
from sessions_app.cron.brief import local
from sessions_app.cron.models import CronJob, CronRun
from sessions_app.cron.schedule import BadSchedule, next_slots
from sessions_app.cron.serializers import TIMES_SHOWN
from sessions_app.models import Project
from suzent_site.console import ConsoleAdmin, EngineOwned, PlainDialog, RefusableForm, leave_dialog
from suzent_site.shown import age, hides, in_a_line, whole

NEWEST_RUNS = 20
JOBS = "admin:sessions_app_cronjob"
RUN_LABELS = {"success": "success", "error": "danger", "skipped": "warning", "running": "info", "queued": "default"}


class JobForm(RefusableForm):
    project = forms.ModelChoiceField(
        Project.objects.filter(archived_at=None), widget=UnfoldAdminSelectWidget, help_text="Whose agent runs it. It cannot change later."
    )
    runtime = forms.ChoiceField(
        choices=lambda: [("", "the project's first"), *((name, name) for name in settings.RUNTIMES)], required=False,
        widget=UnfoldAdminSelectWidget, help_text="One of the project's.",
    )  # fmt: skip
    model = forms.CharField(
        required=False, max_length=actions.MODEL_LIMIT, widget=UnfoldAdminTextInputWidget, help_text="For the runtime. Empty: its own choice."
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in ("name", "prompt"):
            if name in self.fields:
                self.fields[name].strip = False  # type: ignore[attr-defined]  # kept as it is typed
        if self.instance.pk:
            self.fields.pop("project", None)
            session = self.instance.session
            self.initial.update(runtime=session.runtime, model=session.config.get("model", ""))

    def said(self) -> dict[str, Any]:
        """What was changed. A browser sends line breaks in its own way: those alone are no change."""
        asked = {name: self.cleaned_data[name] for name in self.changed_data if name != "project"}
        if "prompt" in asked:
            asked["prompt"] = _plain_breaks(asked["prompt"])
            if asked["prompt"] == _plain_breaks(self.initial.get("prompt", "")):
                del asked["prompt"]
        return asked


def _plain_breaks(text: str) -> str:
    return text.replace("\r\n", "\n")


class JobState(admin.SimpleListFilter):
    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [(name, name) for name in ("on", "off", "gave up")]

    def queryset(self, request: HttpRequest, queryset: QuerySet[CronJob]) -> QuerySet[CronJob]:
        match self.value():
            case "on":
                return queryset.filter(active=True)
            case "off":
                return queryset.filter(active=False, disabled_reason="")
            case "gave up":
                return queryset.filter(pk__in=CronJob.objects.gave_up().values("pk"))
        return queryset


@admin.register(CronJob)
class CronJobAdmin(ConsoleAdmin):
    """Made and edited here through cron's actions; the next run times are shown before anything is saved."""

    form = JobForm
    list_display = ("shown_name", "project", "expression", "time_zone", "state", "next_run", "last_run", "retry_count")
    list_filter = (JobState, ("session__project", admin.RelatedOnlyFieldListFilter))
    search_fields = ("name__icontains", "job_id__startswith")
    ordering = ("name", "job_id")
    change_form_after_template = "admin/sessions_app/cronjob/next_runs.html"
    change_form_outer_after_template = "admin/sessions_app/cronjob/last_runs.html"
    actions = ("run_chosen", "enable_chosen", "disable_chosen")
    actions_detail = ("run_now", "delete_job")
    actions_list = ("read_announcements",)

    def get_queryset(self, request: HttpRequest) -> QuerySet[CronJob]:
        jobs: QuerySet[CronJob] = super().get_queryset(request)
        return jobs.filter(session__archived_at=None).select_related("session__project")

    def get_fields(self, request: HttpRequest, obj: CronJob | None = None) -> tuple[str, ...]:
        about = ("expression", "time_zone", "prompt", "runtime", "model", "delivery_mode", "active")
        if obj is None:
            return ("project", "name", *about)
        told = ("job_id", "project", "agent", "shown_reason", "next_run", "last_run", "shown_error", "retry_count")
        if not self.has_change_permission(request, obj):
            return ("shown_name", "expression", "time_zone", "shown_prompt", "shown_runtime", "shown_model", "delivery_mode", "active", *told)
        shown = [f"shown_{field}" for field in ("name", "prompt") if hides(getattr(obj, field).replace("\n", ""))]
        return ("name", *about, *shown, *told)

    def get_readonly_fields(self, request: HttpRequest, obj: CronJob | None = None) -> tuple[str, ...]:
        if obj is None:
            return ()
        made = ("job_id", "project", "agent", "shown_reason", "next_run", "last_run", "shown_error", "retry_count")
        return (*made, "shown_name", "shown_prompt", "shown_runtime", "shown_model")

    def get_urls(self) -> list[URLPattern]:
        preview = path("next_runs/", self.admin_site.admin_view(self.next_runs), name="sessions_app_cronjob_next_runs")
        return [preview, *super().get_urls()]

    def next_runs(self, request: HttpRequest) -> HttpResponse:
        """A piece of the form: when what is typed now would run next, or why it cannot."""
        context = upcoming(request.GET.get("expression", ""), request.GET.get("time_zone", ""), now=database_now())
        return TemplateResponse(request, "admin/sessions_app/cronjob/times.html", context)

    def render_change_form(
        self, request: HttpRequest, context: dict[str, Any], add: bool = False, change: bool = False, form_url: str = "", obj: Any = None
    ) -> HttpResponse:
        now = database_now()
        form = context["adminform"].form
        typed = [str(form[name].value() or "") if name in form.fields else getattr(obj, name, "") for name in ("expression", "time_zone")]
        context["upcoming"] = upcoming(*typed, now=now) if typed[0] else {}
        if obj is not None:
            runs = CronRun.objects.filter(job=obj.pk).order_by("-id")[:NEWEST_RUNS]
            context["last_runs"] = [(run, local(run.slot, obj.time_zone)) for run in runs]
        return super().render_change_form(request, {**context, "now": now}, add, change, form_url, obj)

    def save_model(self, request: HttpRequest, obj: CronJob, form: JobForm, change: bool) -> None:
        if change:
            actions.change_job(CronJob.objects.with_home().get(pk=obj.pk), now=database_now(), **form.said())
            return
        asked = {name: form.cleaned_data[name] for name in ("name", "expression", "time_zone", "runtime", "model", "delivery_mode", "active")}
        prompt = _plain_breaks(form.cleaned_data["prompt"])
        made = actions.create_job(form.cleaned_data["project"], now=database_now(), prompt=prompt, **asked)
        obj.job_id, obj.session = made.job_id, made.session

    # --- What is shown -----------------------------------------------------------------------------------------
    @display(description="Name", ordering="name")
    def shown_name(self, obj: CronJob) -> SafeString:
        return in_a_line(obj.name, limit=60)

    @display(description="Project", ordering="session__project")
    def project(self, obj: CronJob) -> str:
        return obj.session.project_id

    @display(description="Agent")
    def agent(self, obj: CronJob) -> str:
        return obj.session_id

    @display(description="Switched off because")
    def shown_reason(self, obj: CronJob) -> SafeString:
        return whole(obj.disabled_reason or "—")

    @display(description="Prompt")
    def shown_prompt(self, obj: CronJob) -> SafeString:
        return whole(obj.prompt)

    @display(description="Runtime")
    def shown_runtime(self, obj: CronJob) -> str:
        return obj.session.runtime

    @display(description="Model")
    def shown_model(self, obj: CronJob) -> SafeString:
        return in_a_line(str(obj.session.config.get("model", "")) or "—")

    @display(description="Last error")
    def shown_error(self, obj: CronJob) -> SafeString:
        return whole(obj.last_error or "—")

    @display(description="State", label={"on": "success", "off": "default", "gave up": "danger"})
    def state(self, obj: CronJob) -> str:
        if obj.active:
            return "on"
        return "gave up" if obj.disabled_reason else "off"

    @display(description="Next run", ordering="next_run_at")
    def next_run(self, obj: CronJob) -> str:
        return _when(obj.next_run_at, obj.time_zone)

    @display(description="Last run", ordering="last_run_at")
    def last_run(self, obj: CronJob) -> str:
        return f"{obj.last_status}, {_when(obj.last_run_at, obj.time_zone)}" if obj.last_status else "—"

    # --- What can be done --------------------------------------------------------------------------------------
    @action(
        description="Run now",
        permissions=["act"],
        icon="play_arrow",
        dialog={
            "title": "Run this job now?",
            "description": "Once, beside its slots. A failure of it is not retried and does not count.",
            "form_class": PlainDialog,
            "form_submit_text": "Run now",
        },
    )
    def run_now(self, request: HttpRequest, form: PlainDialog, object_id: str) -> HttpResponse:
        job = self.row_of(request, object_id)
        try:
            actions.run_now(job, now=database_now())
        except actions.StillRunning as refusal:
            self.message_user(request, refusal.detail, level="WARNING")
        else:
            self.log_change(request, job, "Run by hand.")
            self.message_user(request, "It is queued: reload this page to see it run.")
        return leave_dialog(request, reverse(f"{JOBS}_change", args=[object_id]))

    @action(
        description="Delete",
        permissions=["act"],
        icon="delete",
        dialog={
            "title": "Delete this job?",
            "description": "For good: nothing of it runs any more and its session is archived. Its runs stay until retention.",
            "form_class": PlainDialog,
            "form_submit_text": "Delete",
        },
    )
    def delete_job(self, request: HttpRequest, form: PlainDialog, object_id: str) -> HttpResponse:
        job = self.row_of(request, object_id)
        actions.delete_job(job, now=database_now(), who=f"operator {request.user.get_username()}")
        self.log_change(request, job, "Deleted.")
        self.message_user(request, "Deleted.")
        return leave_dialog(request, reverse(f"{JOBS}_changelist"))

    @action(description="Run now", permissions=["act"])
    def run_chosen(self, request: HttpRequest, queryset: QuerySet[CronJob]) -> None:
        self.act_on_chosen(request, queryset, lambda job: actions.run_now(job, now=database_now()), done="Queued")

    @action(description="Switch on", permissions=["act"])
    def enable_chosen(self, request: HttpRequest, queryset: QuerySet[CronJob]) -> None:
        self.act_on_chosen(request, queryset, lambda job: self._switch(request, job, on=True), done="Switched on")

    @action(description="Switch off", permissions=["act"])
    def disable_chosen(self, request: HttpRequest, queryset: QuerySet[CronJob]) -> None:
        self.act_on_chosen(request, queryset, lambda job: self._switch(request, job, on=False), done="Switched off")

    def _switch(self, request: HttpRequest, job: CronJob, *, on: bool) -> bool:
        if job.active == on:
            return False
        actions.change_job(job, now=database_now(), active=on)
        self.log_change(request, job, "Switched on." if on else "Switched off.")
        return True

    @action(description="Read announcements", permissions=["act"], icon="campaign", url_path="announcements")
    def read_announcements(self, request: HttpRequest) -> HttpResponse:
        """Each is shown once; the runs keep all of it."""
        told = announcements.drain(None)
        for one in told:
            level = "SUCCESS" if one["status"] == CronRun.Status.SUCCESS else "ERROR"
            said = " — ".join(part for part in (one["name"], one["slot"], one["text"], one["disabled"]) if part)
            self.message_user(request, in_a_line(said, limit=400), level=level)
        if not told:
            self.message_user(request, "Nothing new has been announced.")
        return redirect(f"{JOBS}_changelist")


@admin.register(CronRun)
class CronRunAdmin(EngineOwned):
    list_display = ("pk", "shown_job", "slot_there", "trigger", "attempt", "shown_status", "took", "shown_outcome", "announcement")
    list_filter = ("status", "trigger", "announcement")
    search_fields = ("=job__job_id", "job__name__icontains")
    ordering = ("-id",)
    list_select_related = ("job__session",)

    def get_fields(self, request: HttpRequest, obj: CronRun | None = None) -> tuple[str, ...]:
        times = ("slot_there", "queued_at", "due_at", "started_at", "finished_at")
        return ("shown_job", "shown_status", "trigger", "attempt", "first_run_id", "deferrals", *times, "shown_result", "shown_error", "announcement")

    @display(description="Job")
    def shown_job(self, obj: CronRun) -> SafeString:
        return in_a_line(obj.job.name, limit=60)

    @display(description="Slot", ordering="slot")
    def slot_there(self, obj: CronRun) -> str:
        return f"{local(obj.slot, obj.job.time_zone)} ({obj.job.time_zone})"

    @display(description="Status", label=RUN_LABELS)
    def shown_status(self, obj: CronRun) -> str:
        return obj.status

    @display(description="Took")
    def took(self, obj: CronRun) -> str:
        return age(obj.started_at, now=obj.finished_at) if obj.started_at and obj.finished_at else "—"

    @display(description="Result or error")
    def shown_outcome(self, obj: CronRun) -> SafeString:
        return in_a_line(obj.error or obj.result or "—", limit=80)

    @display(description="Result")
    def shown_result(self, obj: CronRun) -> SafeString:
        return whole(obj.result or "—")

    @display(description="Error")
    def shown_error(self, obj: CronRun) -> SafeString:
        return whole(obj.error or "—")


def upcoming(expression: str, time_zone: str, *, now: datetime) -> dict[str, Any]:
    """For the form: ``times`` by the clock of the zone, or ``refused`` with the reason."""
    try:
        times = next_slots(expression, time_zone, after=now, count=TIMES_SHOWN)
    except BadSchedule as error:
        return {"refused": str(error)}
    return {"times": [(moment.isoformat(sep=" ", timespec="minutes"), f"{moment:%A}") for moment in times]}


def _when(moment: datetime | None, time_zone: str) -> str:
    if moment is None:
        return "—"
    passed = age(moment, now=database_now())
    return f"{local(moment, time_zone)} ({time_zone}), {passed if passed.startswith('in ') else f'{passed} ago'}"
