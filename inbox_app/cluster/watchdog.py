"""What the supervisor looks at, twice a second, and what it does about it. Durations are watched time throughout."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Protocol

import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError, connection
from django.utils.module_loading import import_string
from django_q.models import Schedule

from inbox_app.cluster.pings import Pings
from inbox_app.cluster.watched_time import Unchanged, WatchedClock
from inbox_app.models import Wake
from inbox_app.wake import ANSWER, wake
from sessions_app.clock import database_now
from sessions_app.lanes import any_due, end_leases
from sessions_app.models import Holder
from suzent_site.broker import BROKER_ERRORS, broker_error
from suzent_site.errors import first_line
from suzent_site.processes import boot_id, is_running, state_of, this_host
from suzent_site.transactions import durable

SOON = 8.0  # seconds without an answer that end a group with which no running turn would be lost
LATE = 45.0  # seconds without an answer that end it in any case
AFTER_OUTAGE = 15.0  # seconds of indulgence: q2's pusher sleeps ten after its broker has failed
FRESH = 5.0  # seconds; a shift whose claim loop has passed since is at work
IGNORED = 1.0  # seconds; mail that is due for longer without a shift at work makes us ask the group
STUCK_SHIFT = 15.0  # seconds at least until a shift is killed whose claim loop does not pass any more
STUCK_SCHEDULER = 150.0  # seconds without a run of the minutely sweep; q2 looks at its schedules every 30
FORGOTTEN_AFTER = timedelta(days=1)  # a machine or container whose holders are silent for so long is not coming back
FAR_AHEAD = timedelta(minutes=3)  # a minutely sweep planned later than this was planned by a clock that has been set back
AUXILIARIES = 3  # sentinel, monitor, pusher
SWEEP = "sweep"
MINUTELY = {SWEEP: "inbox_app.tasks.sweep", "cron": "sessions_app.cron.tasks.tick", **settings.MINUTELY}

log = structlog.get_logger(__name__)


class Watched(Protocol):
    """What the watchdog wants to know of a group, and may do to it."""

    def members(self) -> frozenset[int]: ...
    def crew(self) -> frozenset[int]: ...
    def kill(self) -> None: ...


class Watchdog:
    """Watches one run of a group. ``fruitless``: how many runs before it were ended without ever having answered."""

    def __init__(self, group: Watched, *, fruitless: int = 0) -> None:
        self.group = group
        self.fruitless = fruitless
        self._awake, self._clock = WatchedClock(), WatchedClock()
        self._states, self._values = Unchanged(self._awake), Unchanged(self._clock)
        self._pings = Pings(self._clock)
        self._members = self._crew = frozenset[int]()
        self._indulgent_until = 0.0
        self._outage = ""

    def look(self) -> None:
        """One pass. Whatever goes wrong in it, there will be another."""
        try:
            self._awake.tick()
            self._kill_stopped()
            self._look_at_tables()
        except (OperationalError, InterfaceError) as error:
            self._note_outage(f"database: {first_line(error)}")
            connection.close()
        except BROKER_ERRORS as error:
            self._note_outage(f"broker: {first_line(error)}")
        except Exception:  # the border of the worker loop
            log.exception("watchdog_pass_failed")

    def _kill_stopped(self) -> None:
        """A process that somebody stopped (SIGSTOP) for longer than a lease holds up the others."""
        self._members = self.group.members()
        self._states.forget_all_but(self._members)
        for pid in self._members:
            state = state_of(pid)
            if self._states.seconds(pid, state) >= settings.SUZENT_LEASE_SECONDS and state == "T":
                _kill(pid, reason="stopped for longer than a lease")

    def _look_at_tables(self) -> None:
        now = database_now()
        holders = _bury_the_dead(Holder.objects.all(), now=now)
        if why := broker_error():
            return self._note_outage(f"broker: {why}")
        self._note_end_of_outage()
        self._clock.tick()
        shifts = [holder for holder in holders if holder.kind == Holder.Kind.SHIFT]
        at_work = [shift for shift in shifts if self._silence_of(shift) < FRESH]
        self._kill_stuck(shifts)
        self._look_at_group(at_work, ignored=self._look_at_mail(at_work, now=now), now=now)
        for errand in settings.ERRANDS:
            import_string(errand)(now=now)

    def _silence_of(self, shift: Holder) -> float:
        return self._values.seconds(("beat", shift.owner), shift.beat_at)

    def _kill_stuck(self, shifts: Iterable[Holder]) -> None:
        """Its claim loop hangs, and it would keep its leases by renewing them for ever."""
        limit = max(settings.SUZENT_LEASE_SECONDS, STUCK_SHIFT)
        for shift in shifts:
            if _is_here(shift) and shift.pid in self._members and self._silence_of(shift) >= limit:
                _kill(shift.pid, reason="its claim loop does not pass any more")

    def _look_at_mail(self, at_work: list[Holder], *, now: datetime) -> bool:
        """Wake a shift if mail is due; ``wake`` knows whether one has room or is on its way. True: it is being ignored."""
        due = any_due(now=now)
        seconds = self._values.seconds("due", due)
        if due and seconds > 0:
            wake()
        return due and not at_work and seconds >= IGNORED

    def _look_at_group(self, at_work: list[Holder], *, ignored: bool, now: datetime) -> None:
        before, self._crew = self._crew, self.group.crew()
        changed = bool(before) and before != self._crew
        self._pings.look(complete=self._is_complete(), hurry=ignored or changed, now=now)
        if self._pings.ever_answered:
            self.fruitless = 0
        if self._pings.unanswered_for >= self._patience(at_work) and self._clock.now >= self._indulgent_until:
            self._end_group(f"no task was finished for {self._pings.unanswered_for:.0f} s")
        elif self._scheduler_is_stuck(now=now):
            self._end_group("its schedules do not run")

    def _is_complete(self) -> bool:
        return not self._crew or len(self._crew) >= settings.SUZENT_WORKERS + AUXILIARIES

    def _patience(self, at_work: list[Holder]) -> float:
        """Long when running turns would die with the group, or when another cluster may have taken our questions."""
        if any(shift.pid in self._members and _is_here(shift) for shift in at_work) or self._others_answer():
            return LATE
        return min(SOON * float(2**self.fruitless), LATE)

    def _others_answer(self) -> bool:
        """Somebody has answered our questions lately although our group did not finish them."""
        answered = Wake.objects.filter(name=ANSWER).values_list("answered_at", flat=True).first()
        return bool(self._values.seconds("answered", answered) < SOON / 2)

    def _scheduler_is_stuck(self, *, now: datetime) -> bool:
        planned = dict(Schedule.objects.filter(name__in=MINUTELY).values_list("name", "next_run"))
        if planned.keys() != MINUTELY.keys():
            make_schedules(now=now)
        if ahead := [name for name, next_run in planned.items() if next_run > now + FAR_AHEAD]:
            log.warning("schedule_was_ahead", names=ahead)
            Schedule.objects.filter(name__in=ahead).update(next_run=_full_minute(now))
        return self._values.seconds("sweep", planned.get(SWEEP)) >= STUCK_SCHEDULER

    def _end_group(self, reason: str) -> None:
        log.warning("group_killed", reason=reason)
        self.fruitless += not self._pings.ever_answered
        self.group.kill()

    def _note_outage(self, what: str) -> None:
        if not self._outage:
            log.warning("outage", what=what)
        self._outage = what

    def _note_end_of_outage(self) -> None:
        if self._outage:
            log.info("outage_over", what=self._outage)
            self._outage = ""
            self._indulgent_until = self._clock.now + AFTER_OUTAGE


def make_schedules(*, now: datetime) -> None:
    """See that the minutely tasks are scheduled, once each, however many clusters start at a time.

    On the full minute, at which cron's slots begin, so that q2's next look, at most 30 s later, takes them.
    """
    with durable():
        Wake.objects.get_or_create(name="schedules")
        Wake.objects.select_for_update().get(name="schedules")
        there = set(Schedule.objects.filter(name__in=MINUTELY).values_list("name", flat=True))
        for name in MINUTELY.keys() - there:
            Schedule.objects.create(
                name=name, func=MINUTELY[name], schedule_type=Schedule.MINUTES, minutes=1, repeats=-1, next_run=_full_minute(now)
            )


def _full_minute(now: datetime) -> datetime:
    return now.replace(second=0, microsecond=0)


def _bury_the_dead(holders: Iterable[Holder], *, now: datetime) -> list[Holder]:
    """Free the lanes of processes that are gone; return the holders that may still live."""
    living = []
    for holder in holders:
        if not _is_gone(holder, now=now):
            living.append(holder)
            continue
        freed = end_leases(holder.owner, now=now)
        log.warning("holder_gone", owner=holder.owner, kind=holder.kind, lanes_freed=freed)  # a deleted row forgets its key
        holder.delete()
    return living


def _is_gone(holder: Holder, *, now: datetime) -> bool:
    """Ended on this machine, or before its last boot, or on another one that has not been heard of for a day."""
    if holder.host != this_host():
        return now - holder.beat_at > FORGOTTEN_AFTER
    return holder.boot_id != boot_id() or not is_running(holder.pid, holder.process_started)


def _is_here(holder: Holder) -> bool:
    return (holder.host, holder.boot_id) == (this_host(), boot_id())


def _kill(pid: int, *, reason: str) -> None:
    log.warning("process_killed", pid=pid, reason=reason)
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        log.info("process_was_gone", pid=pid)
