"""The minutely look at the jobs: it only queues the runs that are due, and wakes whoever carries them out.

However many schedulers look at a time, a slot gets one run: each takes the job's lane, reads again, and moves
``next_run_at`` on first.
"""

from __future__ import annotations

from datetime import datetime
from typing import cast

import structlog

from sessions_app import lanes
from sessions_app.cron import runs
from sessions_app.cron.models import CronJob, CronRun
from sessions_app.cron.querysets import CronJobQuerySet
from sessions_app.cron.schedule import BadSchedule, next_slot
from suzent_site.transactions import durable

log = structlog.get_logger(__name__)


def tick(*, now: datetime) -> int:
    """Take every slot that is due; the number of runs queued. Of the slots missed while nobody looked one run is left."""
    for job in CronJob.objects.planned_ahead(now):
        _plan_again(job, now=now)
    queued = sum(_take_slot(job, now=now) for job in CronJob.objects.due(now).order_by("next_run_at"))
    for key in runs.waiting_in_vain(now=now):
        with durable():
            runs.look_again(key, now=now)
    return queued


def _take_slot(job: CronJob, *, now: datetime) -> bool:
    """False: somebody was first, or it has a run in the way, or it cannot go on and was switched off."""
    with durable():
        lanes.lock([job.lane_key])
        current = CronJob.objects.due(now).with_home().filter(pk=job.pk).first()
        if current is None or not _move_on(current, CronJob.objects.due(now), now=now):
            return False
        run = runs.queue_slot(current, slot=cast("datetime", current.next_run_at), now=now)
    return run is not None and run.status == CronRun.Status.QUEUED


def _plan_again(job: CronJob, *, now: datetime) -> None:
    """The clock has been set back since its next slot was reckoned: what is next now may come before that."""
    with durable():
        lanes.lock([job.lane_key])
        current = CronJob.objects.planned_ahead(now).with_home().filter(pk=job.pk).first()
        if current is not None:
            _move_on(current, CronJob.objects.planned_ahead(now), now=now)


def _move_on(job: CronJob, still: CronJobQuerySet, *, now: datetime) -> bool:
    """Name the next slot, if the job is ``still`` there. One that cannot be reckoned any more is switched off, and the others go on."""
    if runs.is_gone(job.session):
        runs.switch_off(job, why=runs.GONE, now=now)
        return False
    try:
        following = next_slot(job.expression, job.time_zone, after=now)
    except BadSchedule as error:
        runs.switch_off(job, why=f"It has no next run. {error}", now=now)
        return False
    return still.filter(pk=job.pk).update(next_run_at=following, planned_at=now) == 1
