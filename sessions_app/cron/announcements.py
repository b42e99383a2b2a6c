"""Announcements: a bounded channel in the cache, for whoever watches. The run's row is the truth; losing these loses nothing.

Each is kept under a key of its own that is never used again, and whoever deletes it has it: so two readers never both
get one. Which keys there may be, the rows say.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import structlog
from django.core.cache import cache
from django.db import DatabaseError

from sessions_app.clock import database_now
from sessions_app.cron.brief import local
from sessions_app.cron.models import CronJob, CronRun
from sessions_app.cron.schedule import FAILURES_AT_MOST
from sessions_app.text import cut
from suzent_site.broker import BROKER_ERRORS

MOST = 20  # that wait to be read; a newer one pushes out the oldest
KEPT = timedelta(days=7)
TEXT_LIMIT = 2_000  # characters

log = structlog.get_logger(__name__)


def announce(run: CronRun) -> CronRun.Announcement:
    """Tell how a run ended, if its job wants that: a result that is not blank, or a failure.

    That a job was switched off is told even for a silent one.
    """
    if not _wants_to_be_told(run):
        return CronRun.Announcement.NONE
    return CronRun.Announcement.SENT if _put(run) else CronRun.Announcement.FAILED


def waiting(project: str | None) -> list[dict[str, Any]]:
    """What nobody has read yet, the latest first; of every project where none is named."""
    keys = _keys(project)
    found = _cached(keys)
    return [found[key] for key in keys if key in found]


def drain(project: str | None) -> list[dict[str, Any]]:
    """Take what waits, in the order in which it happened. What one reader gets, no other does."""
    keys = _keys(project)[::-1]
    found = _cached(keys)
    return [found[key] for key in keys if key in found and _taken(key)]


def _wants_to_be_told(run: CronRun) -> bool:
    if _was_the_last(run):
        return True
    has_news = run.status == CronRun.Status.ERROR or bool(run.result.strip())
    return run.job.delivery_mode == CronJob.DeliveryMode.ANNOUNCE and has_news


def _was_the_last(run: CronRun) -> bool:
    failed_for_good = run.status == CronRun.Status.ERROR and run.attempt >= FAILURES_AT_MOST
    return failed_for_good and not run.job.active


def _put(run: CronRun) -> bool:
    try:
        return bool(cache.add(_key(run.pk), _told(run), timeout=KEPT.total_seconds()))
    except (DatabaseError, *BROKER_ERRORS) as error:
        log.warning("not_announced", run_id=run.pk, error=type(error).__name__)
        return False


def _told(run: CronRun) -> dict[str, Any]:
    job = run.job
    return {
        "run_id": run.pk,
        "job_id": job.pk,
        "name": job.name,
        "project_id": job.session.project_id,
        "agent_id": job.session_id,
        "status": run.status,
        "slot": local(run.slot, job.time_zone),
        "finished_at": local(run.finished_at, job.time_zone),
        "text": cut(run.error if run.status == CronRun.Status.ERROR else run.result, TEXT_LIMIT),
        "disabled": job.disabled_reason if _was_the_last(run) else "",
    }


def _keys(project: str | None) -> list[str]:
    runs = CronRun.objects.announced_since(database_now() - KEPT)
    if project is not None:
        runs = runs.of_project(project)
    return [_key(pk) for pk in runs.values_list("pk", flat=True)[:MOST]]


def _key(run_id: int) -> str:
    return f"cron.announcement.{run_id}"


def _cached(keys: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Without the cache there is nothing to tell; the runs are there all the same."""
    try:
        return cache.get_many(keys)
    except (DatabaseError, *BROKER_ERRORS) as error:
        log.warning("announcements_unreadable", error=type(error).__name__)
        return {}


def _taken(key: str) -> bool:
    try:
        return cache.delete(key)
    except (DatabaseError, *BROKER_ERRORS) as error:
        log.warning("announcements_unreadable", error=type(error).__name__)
        return False
