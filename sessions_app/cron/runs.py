"""Cron runs: the only writer of their rows, from the slot that came round to its end.

Every function without a transaction of its own is a step of its caller's, who has locked the job's lane: scheduler,
shift, people's edits and the end of a run never meet. A lane key or session id names its job.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import structlog
from django.db.models import F, Min

from sessions_app import lanes, turns
from sessions_app.clock import database_now
from sessions_app.cron import announcements
from sessions_app.cron.brief import header, local
from sessions_app.cron.models import CronJob, CronRun
from sessions_app.cron.schedule import FAILURES_AT_MOST, retry_at
from sessions_app.lanes import Hold
from sessions_app.models import Session, Turn
from sessions_app.runtimes.base import TurnInput
from sessions_app.text import cut, storable
from sessions_app.turns import Beginning, Mark
from suzent_site.transactions import durable, hint_on_commit

LANE_PREFIX = "agent:cron-"
SESSION_PREFIX = "cron-"
RESULT_LIMIT = 20_000  # characters of a reply that are kept with its run; the transcript has all of it
ERROR_LIMIT = 2_000  # characters
DEFERRED_AT_MOST = timedelta(hours=24)  # after its slot; then a run that waits for its runtime counts as failed
GONE = "its session or its project is archived"

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class CronWork:
    """A run that is to be carried out now, under this hold. What the engine asks of any work, see inbox_app/deliveries.py."""

    hold: Hold
    run: CronRun
    turn: Turn

    @property
    def session(self) -> Session:
        return self.run.job.session

    @property
    def name(self) -> str:
        return str(self.run)

    @property
    def alone(self) -> bool:
        return self.run.job.suspect

    @property
    def deferrals(self) -> int:
        return self.run.deferrals

    @property
    def charged(self) -> int:
        return 0

    @property
    def losses(self) -> int:
        return 0

    def given(self) -> tuple[TurnInput, ...]:
        return (TurnInput(self.run.key, "cron", self.run.job.prompt, self.run.attempt, header(self.run)),)

    def marks(self) -> list[Mark]:
        """None: the run's own status, written by the same commit, says that it has been."""
        return []

    def on_commit(self, reply: str, error: str, *, now: datetime) -> None:
        """A step of the turn's commit."""
        if turns.was_asked_to_stop(self.turn.pk):
            _end(self.run, CronRun.Status.ERROR, error="it was asked to stop" + (f": {error}" if error else ""), result=reply, now=now)
        else:
            _succeed(self.run, reply, now=now)


# --- The slot comes round --------------------------------------------------------------------------------------
def queue_slot(job: CronJob, *, slot: datetime, now: datetime) -> CronRun | None:
    """The run of a slot, or its row as skipped where the job's own earlier run is in the way.

    A retry that waits gives way: the slot counts as it. None: the slot has had its run, before the clock was set back.
    """
    if CronRun.objects.filter(job=job, slot=slot).exists():
        return None
    _give_way(CronRun.objects.of_jobs([job.pk]).queued().filter(trigger=CronRun.Trigger.RETRY), why="the next slot came", now=now)
    earlier = CronRun.objects.of_jobs([job.pk]).open().first()
    if earlier is not None:
        return _skipped(job, slot, why=f"overlap: its run of {local(earlier.slot, job.time_zone)} {_how_far(earlier)}", now=now)
    return _queue(job, slot=slot, trigger=CronRun.Trigger.SCHEDULE, attempt=job.retry_count + 1, due_at=now, now=now)


def queue_by_hand(job: CronJob, *, now: datetime) -> CronRun | None:
    """A run beside the slots: it is not retried, and a failure of it does not count. None: another has not ended yet."""
    _give_way(CronRun.objects.of_jobs([job.pk]).queued().filter(trigger=CronRun.Trigger.RETRY), why="it was run by hand", now=now)
    if CronRun.objects.of_jobs([job.pk]).open().exists() or CronRun.objects.filter(job=job, slot=now).exists():
        return None
    return _queue(job, slot=now, trigger=CronRun.Trigger.MANUAL, attempt=1, due_at=now, now=now)


def call_off(job: CronJob, *, why: str, now: datetime, retries_only: bool = False) -> None:
    """What is queued will not run."""
    queued = CronRun.objects.of_jobs([job.pk]).queued()
    _give_way(queued.filter(trigger=CronRun.Trigger.RETRY) if retries_only else queued, why=why, now=now)


def _give_way(queued: Any, *, why: str, now: datetime) -> None:
    queued.update(status=CronRun.Status.SKIPPED, error=why, finished_at=now)


def _skipped(job: CronJob, slot: datetime, *, why: str, now: datetime) -> CronRun:
    return CronRun.objects.create(
        job=job, slot=slot, trigger=CronRun.Trigger.SCHEDULE, attempt=job.retry_count + 1, status=CronRun.Status.SKIPPED,
        error=why, due_at=now, queued_at=now, finished_at=now,
    )  # fmt: skip


def _queue(
    job: CronJob, *, slot: datetime, trigger: CronRun.Trigger, attempt: int, due_at: datetime, now: datetime, first: int | None = None
) -> CronRun:
    run = CronRun.objects.create(
        job=job, slot=slot, trigger=trigger, attempt=attempt, first_run_id=first, status=CronRun.Status.QUEUED, due_at=due_at, queued_at=now,
    )  # fmt: skip
    lanes.look_by(job.lane_key, at=due_at)
    if due_at <= now:
        lanes.wake_on_commit()
    return run


def _how_far(run: CronRun) -> str:
    return "is still running" if run.status == CronRun.Status.RUNNING else "has not started yet"


# --- A shift has its lane --------------------------------------------------------------------------------------
def begin(holds: Sequence[Hold], *, now: datetime) -> list[CronWork]:
    """Start what is due in these lanes. Costs nothing where none of them is a cron job's."""
    mine = {_job_of(hold.key): hold for hold in holds if hold.key.startswith(LANE_PREFIX)}
    if not mine:
        return []
    due = list(CronRun.objects.of_jobs(mine).queued().filter(due_at__lte=now).with_home())
    gone = [run.pk for run in due if is_gone(run.job.session)]
    _give_way(CronRun.objects.queued().filter(pk__in=gone), why=GONE, now=now)
    starting = [run for run in due if run.pk not in gone]
    CronRun.objects.queued().filter(pk__in=[run.pk for run in starting]).update(status=CronRun.Status.RUNNING, started_at=now)
    for run in starting:
        run.status, run.started_at = CronRun.Status.RUNNING, now
    begun = turns.start([_beginning(run, mine[run.job_id]) for run in starting], now=now)
    return [CronWork(mine[run.job_id], run, turn) for run, turn in zip(starting, begun, strict=True)]


def _beginning(run: CronRun, hold: Hold) -> Beginning:
    return Beginning(hold, run.job.session_id, [run.key], origin=Turn.Origin.CRON)


def is_gone(session: Session) -> bool:
    return session.archived_at is not None or session.project.archived_at is not None


def _job_of(key: str) -> str:
    return key.removeprefix(LANE_PREFIX)


def next_due(keys: Collection[str]) -> dict[str, datetime]:
    """When the next queued run of each lane may start; lanes without one are left out."""
    jobs = [_job_of(key) for key in keys if key.startswith(LANE_PREFIX)]
    if not jobs:
        return {}
    waiting = CronRun.objects.of_jobs(jobs).queued().values_list("job").annotate(Min("due_at")).order_by()
    return {f"{LANE_PREFIX}{job}": due_at for job, due_at in waiting}


def take_back(keys: Collection[str], *, now: datetime) -> None:
    """Runs that were begun by a transaction whose answer was lost, so that nobody runs them, wait again."""
    begun = list(CronRun.objects.of_jobs([_job_of(key) for key in keys if key.startswith(LANE_PREFIX)]).running().with_home())
    turns.close_lost([run.job.session_id for run in begun], now=now)
    for run in begun:
        _wait_again(run, due_at=now, deferrals=0)


# --- It ends ---------------------------------------------------------------------------------------------------
def close_lost(keys: Collection[str], *, now: datetime) -> None:
    """End what a former holder of these lanes left running; its turn has been closed. A step of the claim.

    It is not simply run again: it counts as a failure, which is retried beside the slots.
    """
    jobs = [_job_of(key) for key in keys if key.startswith(LANE_PREFIX)]
    for run in CronRun.objects.of_jobs(jobs).running().with_home() if jobs else ():
        turn = Turn.objects.filter(session=run.job.session_id, origin=Turn.Origin.CRON).order_by("-id").first()
        error = turn.error if turn and turn.error else "the process that ran it is gone"
        if turn is not None and turn.state == Turn.State.STOPPED:
            _end(run, CronRun.Status.ERROR, error=f"it was asked to stop: {error}", now=now)
        else:
            fail(run, error=error, suspect=True, now=now)


def fail(run: CronRun, *, error: str, suspect: bool = False, now: datetime) -> None:
    """It came to nothing. Retried beside the slots; after so many failures in a row the job is switched off.

    ``suspect``: it killed or hung its process, so the next one gets a process of its own.
    """
    _end(run, CronRun.Status.ERROR, error=error, now=now)
    CronJob.objects.filter(pk=run.job_id).update(suspect=suspect)
    if run.trigger == CronRun.Trigger.MANUAL or not CronJob.objects.filter(pk=run.job_id, active=True).exists():
        return
    CronJob.objects.filter(pk=run.job_id).update(retry_count=F("retry_count") + 1)
    job = CronJob.objects.with_home().get(pk=run.job_id)
    if job.retry_count >= FAILURES_AT_MOST:
        switch_off(job, why=f"It failed {job.retry_count} times in a row. The last error: {cut(storable(error), 500)}", now=now)
        return
    again = retry_at(job.retry_count, now=now, next_run_at=job.next_run_at)
    if again is not None and not CronRun.objects.filter(job=job, slot=again).exists():
        _queue(
            job, slot=again, trigger=CronRun.Trigger.RETRY, attempt=job.retry_count + 1, due_at=again, now=now,
            first=run.first_run_id or run.pk,
        )  # fmt: skip


def put_back(run: CronRun, *, due_at: datetime, deferred: str = "", now: datetime) -> None:
    """It waits again, and nothing is charged. ``deferred``: its runtime was unavailable, and why; after a day of that it has failed."""
    if deferred and due_at >= run.slot + DEFERRED_AT_MOST:
        fail(run, error=deferred, now=now)
    else:
        _wait_again(run, due_at=due_at, deferrals=1 if deferred else 0)


def stopped(run: CronRun, *, error: str, now: datetime) -> None:
    """Somebody asked it to stop, and it ended without anything to commit. Neither retried nor counted."""
    _end(run, CronRun.Status.ERROR, error=f"it was asked to stop: {error}", now=now)


def switch_off(job: CronJob, *, why: str, now: datetime) -> None:
    """No slot of it runs any more until somebody switches it on. The reason stays visible."""
    log.warning("cron_job_switched_off", job_id=job.pk)
    CronJob.objects.filter(pk=job.pk).update(active=False, next_run_at=None, disabled_reason=storable(why), updated_at=now)
    call_off(job, why="the job was switched off", now=now)


def _wait_again(run: CronRun, *, due_at: datetime, deferrals: int) -> None:
    CronRun.objects.running().filter(pk=run.pk).update(
        status=CronRun.Status.QUEUED, started_at=None, due_at=due_at, deferrals=F("deferrals") + deferrals
    )


def _succeed(run: CronRun, reply: str, *, now: datetime) -> None:
    _end(run, CronRun.Status.SUCCESS, result=reply, now=now)
    CronJob.objects.filter(pk=run.job_id).update(retry_count=0, suspect=False)


def _end(run: CronRun, status: CronRun.Status, *, now: datetime, result: str = "", error: str = "") -> None:
    kept = cut(storable(result), RESULT_LIMIT, note="\n[cut: the session's transcript has the rest]")
    why = cut(storable(error), ERROR_LIMIT)
    if not CronRun.objects.running().filter(pk=run.pk).update(status=status, finished_at=now, result=kept, error=why):
        return
    CronJob.objects.filter(pk=run.job_id).update(last_status=status, last_run_at=run.started_at, last_error=why)
    hint_on_commit(partial(_announce, run.pk))


def _announce(run_id: int) -> None:
    """After the commit. What came of it is kept apart from how the run ended."""
    run = CronRun.objects.with_home().get(pk=run_id)
    outcome = announcements.announce(run)
    if outcome == CronRun.Announcement.NONE:
        return
    at = database_now() if outcome == CronRun.Announcement.SENT else None
    with durable():
        CronRun.objects.filter(pk=run_id).update(announcement=outcome, announced_at=at)


# --- Repair and retention --------------------------------------------------------------------------------------
def waiting_in_vain(*, now: datetime) -> list[str]:
    """Free lanes in which a run is due and nobody would look, or waits for a time that a clock said that ran ahead."""
    late = (CronRun.objects.queued().filter(due_at__lte=now) | CronRun.objects.queued_ahead(now)).values_list("job", flat=True)
    return lanes.unseen([f"{LANE_PREFIX}{job}" for job in late], now=now)


def look_again(key: str, *, now: datetime) -> None:
    """See that somebody looks at a lane whose run waits."""
    lanes.lock([key])
    CronRun.objects.queued_ahead(now).of_jobs([_job_of(key)]).update(due_at=now, queued_at=now)
    lanes.look_by(key, at=now)
    lanes.wake_on_commit()


def forget(run_ids: Collection[int], *, finished_before: datetime) -> int:
    """Delete runs that ended so long ago; how many."""
    return CronRun.objects.finished_before(finished_before).filter(pk__in=run_ids).delete()[0]
