"""Days of cron jobs, played minute by minute with a clock of their own: the scheduler's tick, then a shift's work."""

import threading
from datetime import UTC, datetime, timedelta

from inbox_app import dispatcher, transitions
from inbox_app.deliveries import Judged
from sessions_app.cron import scheduler
from sessions_app.cron.models import CronJob, CronRun
from sessions_app.cron.runs import CronWork
from tests.factories import CronJobFactory, ProjectFactory

SHIFT = "shift:test"
MINUTE = timedelta(minutes=1)
MONDAY = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)


def job(expression="*/5 * * * *", prompt="Look around.", *, now=MONDAY, **about):
    project = about.pop("project", None) or ProjectFactory(runtimes=["scripted", "echo"])
    return CronJobFactory(project=project, expression=expression, prompt=prompt, now=now, **about)


def tick(now):
    return scheduler.tick(now=now)


def claim(now, *, owner=SHIFT):
    return transitions.claim(owner, now=now, limit=50)


def claim_run(now, *, owner=SHIFT):
    """The one cron run that is due."""
    work = [item for item in claim(now, owner=owner) if isinstance(item, CronWork)]
    assert len(work) == 1, work
    return work[0]


def finish(work, now, *, stop=False):
    """Run its turn and settle it as a shift does; what it goes on with in the same lane is carried out too."""
    event = threading.Event()
    if stop:
        event.set()
    ended = dispatcher.run_and_commit(work, event)
    if ended.setback is not None:
        transitions.release(work, ended.setback, now=now)
        return
    for item in transitions.acknowledge([ended.acknowledgement], now=now):
        finish(item, now)


def work(now):
    """All that a shift finds to do, mail too."""
    for item in claim(now):
        assert not isinstance(item, Judged)
        finish(item, now)


def play(begin, minutes):
    """So many minutes after ``begin``, each with a tick of the scheduler and the work of a shift; the clock then."""
    for number in range(1, minutes + 1):
        now = begin + number * MINUTE
        tick(now)
        work(now)
    return begin + minutes * MINUTE


def runs(of):
    return list(CronRun.objects.filter(job=of).order_by("id"))


def statuses(of):
    return [run.status for run in runs(of)]


def minutes_run(of, *, since=MONDAY):
    """At which minutes its runs were started."""
    return [int((run.started_at - since) / MINUTE) for run in runs(of) if run.started_at]


def again(of):
    return CronJob.objects.with_home().get(pk=of.pk)
