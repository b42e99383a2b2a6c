"""Reading words for cron jobs and their runs."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from django.db.models import QuerySet

if TYPE_CHECKING:
    from sessions_app.cron.models import CronJob, CronRun  # noqa: F401  # the querysets' own models

FAR_AHEAD = timedelta(minutes=3)  # what is dated later than this was dated by another clock, and not just after we read ours


class CronJobQuerySet(QuerySet["CronJob"]):
    def kept(self) -> CronJobQuerySet:
        """Not deleted: a job is deleted by archiving its session."""
        return self.filter(session__archived_at=None)

    def of_project(self, project: str) -> CronJobQuerySet:
        return self.filter(session__project=project)

    def due(self, now: datetime) -> CronJobQuerySet:
        return self.filter(next_run_at__lte=now)

    def planned_ahead(self, now: datetime) -> CronJobQuerySet:
        """Planned by a clock that has been set back far since."""
        return self.filter(next_run_at__isnull=False, planned_at__gt=now + FAR_AHEAD)

    def gave_up(self) -> CronJobQuerySet:
        """Switched off by the engine, which says why."""
        return self.filter(active=False).exclude(disabled_reason="")

    def with_home(self) -> CronJobQuerySet:
        """With the session and the project."""
        return self.select_related("session__project")


class CronRunQuerySet(QuerySet["CronRun"]):
    def open(self) -> CronRunQuerySet:
        """Queued or running: at most one of a job."""
        return self.filter(finished_at=None)

    def queued(self) -> CronRunQuerySet:
        return self.open().filter(status="queued")

    def queued_ahead(self, now: datetime) -> CronRunQuerySet:
        """Queued by a clock that has been set back far since."""
        return self.queued().filter(queued_at__gt=now + FAR_AHEAD)

    def running(self) -> CronRunQuerySet:
        return self.open().filter(status="running")

    def of_jobs(self, job_ids: Collection[str]) -> CronRunQuerySet:
        return self.filter(job__in=job_ids)

    def of_project(self, project: str) -> CronRunQuerySet:
        return self.filter(job__session__project=project)

    def announced_since(self, moment: datetime) -> CronRunQuerySet:
        """Those that were announced, the latest first."""
        return self.filter(announced_at__gt=moment).order_by("-announced_at")

    def finished_before(self, moment: datetime) -> CronRunQuerySet:
        return self.filter(finished_at__lt=moment)

    def with_home(self) -> CronRunQuerySet:
        """With the job, its session and its project."""
        return self.select_related("job__session__project")
