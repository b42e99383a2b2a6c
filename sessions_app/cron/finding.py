"""Which jobs and runs a caller may see, one by one and in pages."""

from __future__ import annotations

import re

from sessions_app.authentication import Caller
from sessions_app.cron.models import CronJob, CronRun
from sessions_app.cron.querysets import CronJobQuerySet, CronRunQuerySet
from sessions_app.models import Project
from sessions_app.pages import seal, unseal
from suzent_site.errors import NotFound


def jobs_of(caller: Caller, *, project: str | None = None) -> CronJobQuerySet:
    """Those that are not deleted. Raises NotFound for a project out of reach."""
    within = project_within(caller, project)
    jobs = CronJob.objects.kept().with_home()
    return jobs if within is None else jobs.of_project(within)


def job_named(caller: Caller, job_id: str) -> CronJob:
    """Raises NotFound, in the same words for foreign, deleted and missing ids."""
    found = jobs_of(caller).filter(pk=job_id).first() if re.fullmatch("[0-9a-f]{12}", job_id) else None
    if found is None:
        raise NotFound
    return found


def page_of_jobs(jobs: CronJobQuerySet, *, limit: int, cursor: str = "") -> tuple[list[CronJob], str | None]:
    """Jobs in the order of their ids from the cursor on, and the cursor of the next page or None."""
    if cursor:
        jobs = jobs.filter(pk__gt=unseal("cron.jobs", cursor)[0])
    found = list(jobs.order_by("pk")[: limit + 1])
    page = found[:limit]
    return page, seal("cron.jobs", page[-1].pk) if len(found) > limit else None


def runs_of(caller: Caller, *, project: str | None = None) -> CronRunQuerySet:
    """Those of deleted jobs too. Raises NotFound for a project out of reach."""
    within = project_within(caller, project)
    runs = CronRun.objects.with_home()
    return runs if within is None else runs.of_project(within)


def page_of_runs(
    runs: CronRunQuerySet, *, limit: int, job_id: str | None = None, status: str | None = None, cursor: str = ""
) -> tuple[list[CronRun], str | None]:
    """The newest ``limit`` runs from the cursor on, and the cursor of the next page or None."""
    if job_id is not None:
        runs = runs.of_jobs([job_id])
    if status is not None:
        runs = runs.filter(status=status)
    if cursor:
        runs = runs.filter(pk__lt=unseal("cron.runs", cursor)[0])
    found = list(runs.order_by("-pk")[: limit + 1])
    page = found[:limit]
    return page, seal("cron.runs", page[-1].pk) if len(found) > limit else None


def project_within(caller: Caller, project: str | None) -> str | None:
    """The project that is meant; None: all of them, for an operator who names none. Raises NotFound for one out of reach."""
    if project is None:
        return caller.project_id
    if caller.project_id not in (None, project) or not Project.objects.filter(pk=project).exists():
        raise NotFound
    return project
