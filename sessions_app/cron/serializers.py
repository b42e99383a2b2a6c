"""What cron's calls take and answer."""

from __future__ import annotations

from datetime import datetime

from rest_framework import serializers

from sessions_app.cron.actions import MODEL_LIMIT, PROMPT_LIMIT
from sessions_app.cron.brief import local
from sessions_app.cron.models import NAME_LIMIT, CronJob, CronRun
from sessions_app.cron.schedule import EXPRESSION_LIMIT, BadSchedule, next_slots
from sessions_app.serializers import PAGE_LIMIT, Choice, Flag, QuerySerializer, StrictSerializer, Text, Whole

CURSOR_LENGTH = 400
TIMES_SHOWN = 5


class ChangeJob(StrictSerializer):
    name = Text(required=False, max_length=NAME_LIMIT)
    expression = Text(
        required=False, max_length=EXPRESSION_LIMIT, help_text="Five fields: minute, hour, day of month, month, day of week."
    )
    time_zone = Text(required=False, max_length=64, help_text="Whose clock the expression follows, e.g. Europe/London. UTC if left out.")
    prompt = Text(required=False, max_length=PROMPT_LIMIT, help_text="What the agent is asked.")
    delivery_mode = Choice(choices=CronJob.DeliveryMode.choices, required=False, help_text="Whether results are announced.")
    active = Flag(required=False, help_text="False: no slot runs until it is true again.")
    runtime = Text(required=False, max_length=64, help_text="One of the project's.")
    model = Text(required=False, allow_blank=True, max_length=MODEL_LIMIT, help_text="For the runtime; empty: its own choice.")


class NewJob(ChangeJob):
    name = Text(max_length=NAME_LIMIT)
    expression = Text(max_length=EXPRESSION_LIMIT, help_text="Five fields: minute, hour, day of month, month, day of week.")
    prompt = Text(max_length=PROMPT_LIMIT, help_text="What the agent is asked.")
    project = Text(required=False, help_text="For operators, where there is more than one project.")


class ListJobs(QuerySerializer):
    project = Text(required=False, help_text="Only this project's; for operators.")
    limit = Whole(default=20, min_value=1, max_value=PAGE_LIMIT)
    cursor = Text(required=False, max_length=CURSOR_LENGTH)


class ListRuns(ListJobs):
    job_id = Text(required=False, max_length=12, help_text="Only this job's.")
    status = Choice(choices=CronRun.Status.choices, required=False)


class WhichProject(QuerySerializer):
    project = Text(required=False, help_text="Only this project's; for operators.")


class Preview(QuerySerializer):
    expression = Text(max_length=EXPRESSION_LIMIT)
    time_zone = Text(default="UTC", max_length=64)


class _Out(serializers.Serializer):  # type: ignore[type-arg]  # generic in the stubs only
    """An answer."""


class PreviewOut(_Out):
    next_runs = serializers.ListField(child=serializers.DateTimeField(), help_text="By the zone's own clock.")


class JobOut(_Out):
    job_id = serializers.CharField()
    agent_id = serializers.CharField(source="session_id", help_text="The session that runs it.")
    project_id = serializers.CharField(source="session.project_id")
    name = serializers.CharField()
    expression = serializers.CharField()
    time_zone = serializers.CharField()
    prompt = serializers.CharField()
    runtime = serializers.CharField(source="session.runtime")
    model = serializers.SerializerMethodField()
    delivery_mode = serializers.ChoiceField(choices=CronJob.DeliveryMode.choices)
    active = serializers.BooleanField()
    disabled_reason = serializers.CharField(allow_blank=True, help_text="Why it switched itself off; empty otherwise.")
    next_run_at = serializers.DateTimeField(allow_null=True)
    next_runs = serializers.SerializerMethodField(help_text="The next five, by the clock of its zone; none while it is switched off.")
    retry_count = serializers.IntegerField(help_text="Failures in a row.")
    last_status = serializers.ChoiceField(choices=CronRun.Status.choices, allow_blank=True, help_text="Empty before its first run.")
    last_run_at = serializers.DateTimeField(allow_null=True)
    last_error = serializers.CharField(allow_blank=True)
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()

    def get_model(self, job: CronJob) -> str:
        return str(job.session.config.get("model", ""))

    def get_next_runs(self, job: CronJob) -> list[str]:
        return [moment.isoformat() for moment in next_runs(job)]


class JobPageOut(_Out):
    jobs = JobOut(many=True)
    has_more = serializers.BooleanField()
    next_cursor = serializers.CharField(allow_null=True)


class RunOut(_Out):
    run_id = serializers.IntegerField(source="pk")
    job_id = serializers.CharField()
    name = serializers.CharField(source="job.name")
    agent_id = serializers.CharField(source="job.session_id")
    project_id = serializers.CharField(source="job.session.project_id")
    slot = serializers.DateTimeField(help_text="The time it was planned for.")
    local_time = serializers.SerializerMethodField(help_text="The same by the clock of the job's zone.")
    trigger = serializers.ChoiceField(choices=CronRun.Trigger.choices)
    attempt = serializers.IntegerField(help_text="Which try in a row it is since the last success.")
    retry_of = serializers.IntegerField(source="first_run_id", allow_null=True, help_text="The run that it is a retry of.")
    status = serializers.ChoiceField(choices=CronRun.Status.choices)
    queued_at = serializers.DateTimeField()
    started_at = serializers.DateTimeField(allow_null=True)
    finished_at = serializers.DateTimeField(allow_null=True)
    result = serializers.CharField(allow_blank=True)
    error = serializers.CharField(allow_blank=True)
    announcement = serializers.ChoiceField(choices=CronRun.Announcement.choices)

    def get_local_time(self, run: CronRun) -> str:
        return str(local(run.slot, run.job.time_zone))


class RunPageOut(_Out):
    runs = RunOut(many=True)
    has_more = serializers.BooleanField()
    next_cursor = serializers.CharField(allow_null=True)


class AnnouncementOut(_Out):
    run_id = serializers.IntegerField()
    job_id = serializers.CharField()
    name = serializers.CharField()
    project_id = serializers.CharField()
    agent_id = serializers.CharField()
    status = serializers.ChoiceField(choices=CronRun.Status.choices)
    slot = serializers.CharField(help_text="By the clock of the job's zone.")
    finished_at = serializers.CharField(help_text="By the clock of the job's zone.")
    text = serializers.CharField(allow_blank=True, help_text="The result or the error, cut; the run has more.")
    disabled = serializers.CharField(allow_blank=True, help_text="Why the job was switched off with this run; empty otherwise.")


class AnnouncementsOut(_Out):
    announcements = AnnouncementOut(many=True)


def next_runs(job: CronJob) -> list[datetime]:
    """The planned one and those after it, by the clock of the job's zone."""
    if job.next_run_at is None:
        return []
    try:
        later = next_slots(job.expression, job.time_zone, after=job.next_run_at, count=TIMES_SHOWN - 1)
    except BadSchedule:  # its zone is not known here any more, or time ends before; the scheduler will say so
        return [job.next_run_at]
    return [job.next_run_at.astimezone(later[0].tzinfo), *later]
