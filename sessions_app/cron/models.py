"""Cron jobs and their runs."""

from __future__ import annotations

from django.db import models
from django.db.models import Q

from sessions_app.cron.querysets import CronJobQuerySet, CronRunQuerySet

NAME_LIMIT = 200  # characters


class CronJob(models.Model):
    """What is to be asked of an agent, and when. The agent is its session ``cron-<job_id>``; archiving that ends the job."""

    class DeliveryMode(models.TextChoices):
        ANNOUNCE = "announce"
        SILENT = "silent"

    job_id = models.CharField(primary_key=True, max_length=12, editable=False)
    session = models.OneToOneField("sessions_app.Session", on_delete=models.PROTECT, related_name="cron_job", editable=False)
    name = models.CharField(max_length=NAME_LIMIT)
    expression = models.CharField(max_length=255, help_text="Five fields: minute, hour, day of month, month, day of week, e.g. 0 6 * * MON-FRI.")
    time_zone = models.CharField(max_length=64, default="UTC", help_text="The zone whose clock the expression follows, e.g. Europe/London.")
    prompt = models.TextField(help_text="What the agent is asked, 1 to 20,000 characters.")
    delivery_mode = models.CharField(
        max_length=16, choices=DeliveryMode.choices, default=DeliveryMode.ANNOUNCE,
        help_text="Whether results are announced to whoever watches; every run is kept in either case.",
    )  # fmt: skip
    active = models.BooleanField(default=True, help_text="Whether its slots run. A job is switched off after six failures in a row.")
    disabled_reason = models.TextField(blank=True, editable=False)
    next_run_at = models.DateTimeField(null=True, editable=False)
    planned_at = models.DateTimeField(editable=False, help_text="What the clock said when next_run_at was reckoned.")
    retry_count = models.PositiveSmallIntegerField(default=0, editable=False, help_text="Failures in a row.")
    suspect = models.BooleanField(default=False, editable=False, help_text="Its last run killed or hung its process.")
    last_status = models.CharField(max_length=16, blank=True, editable=False)
    last_run_at = models.DateTimeField(null=True, editable=False)
    last_error = models.TextField(blank=True, editable=False)
    created_at = models.DateTimeField(editable=False)
    updated_at = models.DateTimeField(editable=False)

    objects = CronJobQuerySet.as_manager()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(delivery_mode__in=["announce", "silent"]), name="cron_job_delivery_mode_known"),
            models.CheckConstraint(
                condition=Q(active=True, next_run_at__isnull=False) | Q(active=False, next_run_at=None), name="cron_job_planned_if_active"
            ),
        ]
        indexes = [
            # Reader: CronJobQuerySet.due, the scheduler.
            models.Index(fields=["next_run_at"], condition=Q(next_run_at__isnull=False), name="cron_job_due"),
            # Reader: CronJobQuerySet.planned_ahead, the scheduler.
            models.Index(fields=["planned_at"], condition=Q(next_run_at__isnull=False), name="cron_job_planned"),
        ]

    def __str__(self) -> str:
        return f"cron job {self.job_id}"

    @property
    def lane_key(self) -> str:
        return f"agent:{self.session_id}"


class CronRun(models.Model):
    """One try at a slot. Written by cron/runs.py alone."""

    class Trigger(models.TextChoices):
        SCHEDULE = "schedule"
        RETRY = "retry"
        MANUAL = "manual"

    class Status(models.TextChoices):
        QUEUED = "queued"
        RUNNING = "running"
        SUCCESS = "success"
        ERROR = "error"
        SKIPPED = "skipped"

    class Announcement(models.TextChoices):
        NONE = "none"
        SENT = "sent"
        FAILED = "failed"

    job = models.ForeignKey(CronJob, on_delete=models.CASCADE, related_name="runs", db_index=False)
    slot = models.DateTimeField(help_text="The time it was planned for.")
    trigger = models.CharField(max_length=16, choices=Trigger.choices)
    attempt = models.PositiveSmallIntegerField(help_text="Which try in a row this is since the last success.")
    first_run_id = models.BigIntegerField(null=True, help_text="The run that this one is a retry of.")
    status = models.CharField(max_length=16, choices=Status.choices)
    due_at = models.DateTimeField(help_text="Not before this.")
    deferrals = models.PositiveIntegerField(default=0, help_text="How often its runtime was unavailable.")
    queued_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField(null=True)
    result = models.TextField(blank=True)
    error = models.TextField(blank=True)
    announcement = models.CharField(max_length=16, choices=Announcement.choices, default=Announcement.NONE)
    announced_at = models.DateTimeField(null=True)

    objects = CronRunQuerySet.as_manager()

    class Meta:
        constraints = [
            # Whatever goes wrong above, a slot is run once. Also the index of whoever looks for a job's slot.
            models.UniqueConstraint(fields=["job", "slot"], name="cron_run_once_per_slot"),
            # No two at once. Reader: runs.begin and runs.next_due, for each cron lane that is claimed or left.
            models.UniqueConstraint(fields=["job"], condition=Q(finished_at=None), name="cron_run_one_open"),
            models.CheckConstraint(condition=Q(trigger__in=["schedule", "retry", "manual"]), name="cron_run_trigger_known"),
            models.CheckConstraint(
                condition=Q(status="queued", started_at=None, finished_at=None)
                | Q(status="running", started_at__isnull=False, finished_at=None)
                | Q(status__in=["success", "error"], started_at__isnull=False, finished_at__isnull=False)
                | Q(status="skipped", started_at=None, finished_at__isnull=False),
                name="cron_run_times_fit_status",
            ),
            models.CheckConstraint(
                condition=Q(announcement__in=["none", "failed"], announced_at=None) | Q(announcement="sent", announced_at__isnull=False),
                name="cron_run_announcement_known",
            ),
        ]
        indexes = [
            # Reader: the runs of a job in REST and in the console, the newest first.
            models.Index(fields=["job", "-id"], name="cron_run_newest"),
            # Reader: CronRunQuerySet.finished_before, retention.
            models.Index(fields=["finished_at"], condition=Q(finished_at__isnull=False), name="cron_run_finished"),
            # Reader: CronRunQuerySet.announced_since, the announcements.
            models.Index(fields=["announced_at"], condition=Q(announced_at__isnull=False), name="cron_run_announced"),
        ]

    def __str__(self) -> str:
        return f"cron run {self.pk}"

    @property
    def key(self) -> str:
        """What a try and its retries share: the re-run safe ids of what they send are made of it. No client can choose it."""
        return f"cron run {self.first_run_id or self.pk}"
