"""A shift: one django-q2 task that claims due lanes into its threads, stays while there is work and then leaves.

The loop calls :meth:`Shift.step` and holds no logic; turns run in threads that hand their end back to the loop, which
alone settles them: many acknowledgements and the next heads of their lanes go into one transaction.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Final

import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError, connection
from django_q.conf import Conf

from inbox_app import aside, dispatcher, transitions, transports, wake
from inbox_app.deliveries import Acknowledgement, Doable, Ended, Job, Judged, Next, Parcel, Setback
from inbox_app.drain import draining
from inbox_app.judgement import Verdict
from inbox_app.models import Attempt
from inbox_app.solitary import Died, Nursery, NurseryGone
from sessions_app import lanes
from sessions_app.clock import database_now
from sessions_app.holder import LaneHolder
from sessions_app.models import Holder

POLL_WARM: Final = 0.02  # seconds between looks while it lingers
POLL_COOL: Final = 0.1  # seconds between looks while only long turns run
PAUSE_AFTER_ERROR: Final = 0.5  # seconds
TELL_FULL_EVERY: Final = 0.2  # seconds between two looks of a full shift whether another is needed
FAREWELL: Final = 2.0  # seconds that a shift waits for the threads of its crew to end
MESSAGES_A_HOLD: Final = 8  # then a lane with much mail goes to the back
HEED: Final = 5.0  # seconds in which a turn whose task has timed out has to hear that it is to stop

log = structlog.get_logger(__name__)
_nursery: Nursery | None = None


def run_shift() -> None:
    """Work until there has been nothing to do for a while, or until the order to drain."""
    nursery = _ready_nursery()
    with LaneHolder(Holder.Kind.SHIFT, free=settings.SUZENT_TURN_CONCURRENCY) as holder:
        wake.taken(wake.DISPATCH)  # not before this shift is seen: or what is sent meanwhile would start another beside it
        shift = Shift(holder, nursery)
        try:
            while _goes_on(shift):
                _pass(shift)
        finally:
            shift.leave()
    connection.close()


def _goes_on(shift: Shift) -> bool:
    """Without a database it cannot leave in order: it stays until there is one, or until it is asked to stop."""
    try:
        return shift.on_duty()
    except (OperationalError, InterfaceError) as error:
        log.warning("shift_cannot_leave", owner=shift.owner, error=type(error).__name__)
        connection.close()
        shift.rest(PAUSE_AFTER_ERROR)
        return not draining()


def _pass(shift: Shift) -> None:
    try:
        shift.step()
    except Exception:  # the border around one pass of the worker loop
        log.exception("shift_pass_failed", owner=shift.owner)
        connection.close()
        shift.rest(PAUSE_AFTER_ERROR)
    else:
        shift.rest()


def _ready_nursery() -> Nursery:
    """The nursery of this process, forked while it has no threads.

    A thread that works with SQLite at that very moment holds locks of it which nobody would ever release in the copy:
    every suspect would hang as it connects. That is why a shift sees its crew out before it ends.
    """
    global _nursery  # noqa: PLW0603  # one a process, kept from shift to shift
    if _nursery is not None and not _nursery.usable():
        _nursery.close()
        _nursery = None
    if _nursery is None:
        _nursery = Nursery()
    return _nursery


@dataclass
class Run:
    """A delivery that a thread of this shift runs."""

    work: Job
    stop: threading.Event
    since: float
    in_a_row: int
    limit: float  # seconds


class Shift:
    def __init__(self, holder: LaneHolder, nursery: Nursery) -> None:
        self.owner = holder.owner
        self._holder = holder
        self._nursery = nursery
        self._runs: dict[str, Run] = {}
        self._late: list[Run] = []  # taken back past their task's time-out, their threads not yet returned
        self._ended: queue.SimpleQueue[tuple[Run, Ended]] = queue.SimpleQueue()
        self._crew = Crew()
        self._worked_at = time.monotonic()
        self._full_told_at = 0.0
        self._leaving = False
        self._drained_at: float | None = None

    # --- the loop ------------------------------------------------------------------------------------------------
    def on_duty(self) -> bool:
        """Whether to make another pass. Before it says no, it has said so to everybody and looked once more."""
        if self._runs or self._late or not self._ended.empty():
            return True
        if self._leaving or draining():
            return False
        if time.monotonic() - self._worked_at < wake.LINGER:
            return True
        self._holder.beat(free=0)
        return lanes.any_due(now=database_now())

    def step(self) -> bool:
        """One pass: settle what ended, claim what is due, see to the limits. True if there was anything to do."""
        worked = self._settle_ended()
        self._see_to_time_limits()
        if not self._may_claim():
            self._tell_that_full()
        elif lanes.any_due(now=database_now(), remote=self._remote_room() > 0):
            self._begin(
                transitions.claim(self.owner, now=database_now(), limit=self._room(), remote=self._remote_room()), in_a_row=1
            )
            worked = True
        self._holder.beat(free=self._room() if self._may_claim() else 0)
        if worked:
            self._worked_at = time.monotonic()
        return worked

    def rest(self, seconds: float | None = None) -> None:
        """Wait for the bell (a turn ended, a message came from this process), at most until the next look."""
        warm = time.monotonic() - self._worked_at < wake.LINGER
        wake.bell.wait(seconds or (POLL_WARM if warm else POLL_COOL))
        wake.bell.clear()

    def leave(self) -> None:
        self._crew.dismiss(patience=0 if draining() else FAREWELL)

    def _room(self) -> int:
        """A turn that only waits for a sub-agent takes none: else the two could wait for each other."""
        return settings.SUZENT_TURN_CONCURRENCY - len(self._runs) + aside.count(self._runs)

    def _remote_room(self) -> int:
        """Other machines may be slow, all of them at once: they never get more than half of the threads."""
        remote = sum(isinstance(run.work, Parcel) for run in self._runs.values())
        return max(settings.SUZENT_TURN_CONCURRENCY // 2, 1) - remote

    def _may_claim(self) -> bool:
        return self._room() > 0 and not self._leaving and not draining()

    def _tell_that_full(self) -> None:
        """Say at once that there is no room, and have another shift started while lanes are due."""
        self._holder.beat(free=0)
        if draining() or time.monotonic() - self._full_told_at < TELL_FULL_EVERY:
            return
        self._full_told_at = time.monotonic()
        if lanes.any_due(now=database_now()):
            wake.wake()

    # --- starting ------------------------------------------------------------------------------------------------
    def _begin(self, found: Iterable[Next], *, in_a_row: int) -> None:
        for item in found:
            if isinstance(item, Judged):
                self._settle_judged(item)
            else:
                self._start(item, in_a_row=in_a_row)

    def _start(self, work: Job, *, in_a_row: int) -> None:
        stop = self._holder.watch(work.hold.key, None if isinstance(work, Parcel) else work.turn.pk)
        run = Run(work, stop, time.monotonic(), in_a_row, dispatcher.time_limit(work))
        self._runs[work.hold.key] = run
        self._crew.hand(lambda: self._execute(run))

    def _execute(self, run: Run) -> None:
        """In a thread of the crew: deliver, then hand the end to the loop, even if the thread itself is ended."""
        ended, work = Ended(), run.work
        try:
            if isinstance(work, Parcel):
                ended = transports.delivered_by(work)
            else:
                ended = self._run_alone(work, run.stop) if work.alone else dispatcher.run(work, run.stop)
        finally:
            self._ended.put((run, ended))
            wake.bell.set()

    def _run_alone(self, work: Doable, stop: threading.Event) -> Ended:
        try:
            answer = self._nursery.run(work, stop, seconds=dispatcher.time_limit(work))
        except NurseryGone:
            self._leaving = True  # a new nursery can only be forked by a process without threads
            return Ended(setback=dispatcher.lost("its worker lost the means to run it alone"))
        if answer is None:
            return Ended(setback=dispatcher.timed_out(work))
        if isinstance(answer, Died):
            return self._after_death(work, answer)
        return answer

    def _after_death(self, work: Doable, died: Died) -> Ended:
        """Where the whole nursery died, it is not known who killed it, unless nobody else was in there."""
        running = [run.work for run in list(self._runs.values())]
        in_there = [other for other in running if not isinstance(other, Parcel) and other.alone]
        if self._nursery.usable() or in_there == [work]:
            return Ended(setback=dispatcher.died_alone(work, died.how))
        return Ended(setback=dispatcher.lost(died.how))

    # --- settling ------------------------------------------------------------------------------------------------
    def _settle_ended(self) -> bool:
        """Commit what was done, acknowledge what is committed, put back what came to nothing: each in one transaction."""
        ended = self._take_ended()
        runs = {run.work.hold.key: run for run, _ in ended}
        turns_done = [(run.work, end.commit) for run, end in ended if end.commit and not isinstance(run.work, Parcel)]
        committed = dispatcher.commit(turns_done) if ended else []
        outcomes: list[tuple[Job, Ended]] = [*committed, *((run.work, end) for run, end in ended if end.commit is None)]
        for work, end in outcomes:
            if end.setback is not None:
                self._release(work, end.setback)
            if end.refusal is not None and isinstance(work, Parcel):
                self._fail(Judged(work.hold, work.message, end.refusal), answered=True)
        self._acknowledge([(runs[work.hold.key], end.acknowledgement) for work, end in outcomes if end.acknowledgement])
        return bool(ended)

    def _take_ended(self) -> list[tuple[Run, Ended]]:
        """What the threads handed back, less what has been given up meanwhile: past its time limit, or drained."""
        taken = []
        while not self._ended.empty():
            run, ended = self._ended.get()
            if self._runs.get(run.work.hold.key) is run:
                self._drop(run)
                taken.append((run, ended))
            self._late = [late for late in self._late if late is not run]
        return taken

    def _drop(self, run: Run) -> None:
        del self._runs[run.work.hold.key]
        self._holder.forget(run.work.hold.key)

    def _acknowledge(self, done: list[tuple[Run, Acknowledgement]]) -> None:
        if not done:
            return
        in_a_row = {run.work.hold.key: run.in_a_row for run, _ in done}
        acks = [replace(ack, go_on=self._may_go_on(run)) for run, ack in done]
        found = lanes.until_lease_ends(lambda: transitions.acknowledge(acks, now=database_now()))
        for item in found:
            self._begin([item], in_a_row=in_a_row[item.hold.key] + 1)

    def _may_go_on(self, run: Run) -> bool:
        return run.in_a_row < MESSAGES_A_HOLD and not self._leaving and not draining()

    def _release(self, work: Job, setback: Setback) -> None:
        lanes.until_lease_ends(lambda: transitions.release(work, setback, now=database_now()))

    def _fail(self, item: Judged, *, answered: bool = False) -> None:
        lanes.until_lease_ends(lambda: transitions.fail(item, now=database_now(), answered=answered))

    def _settle_judged(self, item: Judged) -> None:
        """Its lane is held and nobody works on it: a connection lost just now must not leave it so until it is missed."""
        if item.judgement.verdict == Verdict.FAIL:
            self._fail(item)
            return
        stopped = item.judgement.verdict == Verdict.STOPPED
        outcome = Attempt.Outcome.STOPPED if stopped else Attempt.Outcome.DELIVERED
        ack = Acknowledgement(item.hold, item.message, outcome, go_on=True)
        found = lanes.until_lease_ends(lambda: transitions.acknowledge([ack], now=database_now()))
        self._begin(found, in_a_row=1)

    # --- limits --------------------------------------------------------------------------------------------------
    def _see_to_time_limits(self) -> None:
        now = time.monotonic()
        for run in [run for run in self._runs.values() if now - run.since > run.limit]:
            if not isinstance(run.work, Parcel) and not run.work.alone:
                self._give_up_on(run, run.work)
        if any(now - run.since > run.limit + HEED for run in self._late):
            self._late.clear()
            self._count_as_gone()
        if draining():
            self._see_to_drain(now)

    def _give_up_on(self, run: Run, work: Doable) -> None:
        """Its thread hangs: fence it off. One that is only late for its task may still hear of it and come back."""
        log.warning("turn_timed_out", message_id=work.name, agent_id=work.session.pk)
        run.stop.set()
        self._drop(run)
        if run.limit < settings.SUZENT_TURN_TIMEOUT:
            self._late.append(run)
            self._release(work, dispatcher.timed_out(work))
            return
        self._count_as_gone()
        self._release(work, dispatcher.timed_out(work))
        self._tell_that_full()

    def _count_as_gone(self) -> None:
        """A thread of this process hangs for good: it ends when its other turns are done."""
        self._leaving = True
        Conf.MAX_RSS = 1  # q2's own way of having a worker process replaced once its task is done

    def _see_to_drain(self, now: float) -> None:
        self._drained_at = self._drained_at or now
        if now - self._drained_at < settings.SUZENT_SHUTDOWN_GRACE:
            return
        for run in list(self._runs.values()):
            run.stop.set()
            self._drop(run)
            self._release(run.work, dispatcher.drained(run.work))


class Crew:
    """Threads that run jobs, as many as are ever busy at once. Daemons: a hung one must not keep the process alive."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads: list[threading.Thread] = []

    def hand(self, job: Callable[[], None]) -> None:
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            else:
                self._threads.append(threading.Thread(target=self._work, name=f"turn-{len(self._threads) + 1}", daemon=True))
                self._threads[-1].start()
        self._jobs.put(job)

    def dismiss(self, *, patience: float) -> None:
        """Send everybody home and see them out, for ``patience`` seconds at most: one that hangs is left behind."""
        for _ in self._threads:
            self._jobs.put(None)
        give_up_at = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(give_up_at - time.monotonic(), 0))

    def _work(self) -> None:
        try:
            while (job := self._jobs.get()) is not None:
                job()
                with self._lock:
                    self._idle += 1
        finally:
            connection.close()
