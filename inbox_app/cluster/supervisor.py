"""``manage.py cluster``: one django-q2 cluster, and above it a process that keeps it at work and stops it in order.

The supervisor has no threads. Below it, in a session of its own so that a Ctrl-C in the terminal does not reach it,
runs the *group*: q2's main process, its sentinel, workers, pusher and monitor. Every one of them dies with its parent.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from typing import NoReturn

import structlog
from django.db import DatabaseError, connections
from django_q.cluster import Cluster

from inbox_app.cluster import task_counter
from inbox_app.cluster.watchdog import Watchdog, make_schedules
from inbox_app.drain import request_drain
from inbox_app.readiness import a_cluster_has_ended
from sessions_app.clock import database_now
from sessions_app.models import Holder
from suzent_site.broker import broker_error
from suzent_site.errors import first_line
from suzent_site.processes import (
    Bell,
    adopt_orphans,
    boot_id,
    children,
    descendants,
    die_with_parent,
    inherit_death_with_parent,
    reap,
    this_host,
)

PASS = 0.5  # seconds between two looks of the watchdog
LAST_ORDERS = 5.0  # seconds until the group is killed, past the grace period or once no turn runs in it any more
LAST_LOOKS = 0.2  # seconds between looks whether a group that was told to stop has ended
LONG_LIFE = 10.0  # seconds; a group that lived shorter is started again later and later
LONGEST_PAUSE = 5.0  # seconds

log = structlog.get_logger(__name__)


class Group:
    """One run of django-q2: a process group whose leader is q2's main process."""

    def __init__(self) -> None:
        self.pid = 0
        self.started_at = 0.0

    @property
    def running(self) -> bool:
        return self.pid != 0

    def start(self) -> None:
        connections.close_all()  # a socket shared across a fork answers to the wrong one
        supervisor = os.getpid()
        self.started_at = time.monotonic()
        self.pid = os.fork()
        if not self.pid:
            _be_the_group(supervisor)
        log.info("group_started", pid=self.pid)

    def members(self) -> frozenset[int]:
        """Every process below q2's main one."""
        return descendants(self.pid) if self.pid else frozenset()

    def crew(self) -> frozenset[int]:
        """q2's own: the sentinel and its workers, pusher and monitor, without what a worker has forked."""
        sentinels = children(self.pid) if self.pid else frozenset()
        return sentinels.union(*(children(sentinel) for sentinel in sentinels))

    def collect(self) -> None:
        """Reap what has ended; when q2's main process has, nothing of the group is left behind."""
        ended = reap()
        if self.pid in ended:
            note = log.warning if ended[self.pid] else log.info
            note("group_ended", pid=self.pid, exit_code=ended[self.pid])
            self.kill()

    def finish(self) -> None:
        """Ask q2 to end its running tasks and stop. Only its main process may hear it: told to all, q2 hangs."""
        os.kill(self.pid, signal.SIGTERM)

    def kill(self) -> None:
        """End every process of the group now, and wait until they are gone."""
        give_up_at = time.monotonic() + 5
        while self._signal_all() and time.monotonic() < give_up_at:
            reap()
            time.sleep(0.02)
        self.pid = 0

    def _signal_all(self) -> bool:
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True


class Supervisor:
    def __init__(self, *, grace: float) -> None:
        adopt_orphans()
        self.grace = grace
        self.bell = Bell()
        self.group = Group()
        self.watchdog = Watchdog(self.group)
        self.pause = PASS
        self.start_at = 0.0
        self.missing = ""

    def run(self) -> None:
        """Keep the group at work until somebody asks to stop, then let it finish."""
        while not self.bell.stop_asked:
            self.step()
            self.bell.sleep(PASS)
        self.stop()

    def step(self) -> None:
        self.group.collect()
        if not self.group.running and time.monotonic() >= self.start_at and self._can_start():
            self._start()
        if self.group.running:
            self.watchdog.look()

    def stop(self) -> None:
        request_drain()
        if self.group.running:
            log.info("stopping", grace=self.grace)
            self.group.finish()
            self._see_it_end()
        _tell_of_the_end()

    def _see_it_end(self) -> None:
        """q2 may be wedged, if one of its processes was killed just before: then only running turns are worth a wait."""
        give_up_at = time.monotonic() + self.grace + LAST_ORDERS
        while self.group.running and time.monotonic() < give_up_at:
            if not _holds_lanes(self.group.members()):
                give_up_at = min(give_up_at, time.monotonic() + LAST_ORDERS)
            self.bell.sleep(LAST_LOOKS)
            self.group.collect()
        if self.group.running:
            log.warning("group_killed", reason="it did not end in time, or had nothing to end any more")
            self.group.kill()

    def _start(self) -> None:
        """Start the group; when the one before lived only for moments, the next has to wait a little longer."""
        short_lived = time.monotonic() - self.group.started_at < LONG_LIFE
        self.pause = min(self.pause * 2, LONGEST_PAUSE) if short_lived else PASS
        self.start_at = time.monotonic() + self.pause
        self.group.start()
        self.watchdog = Watchdog(self.group, fruitless=self.watchdog.fruitless)

    def _can_start(self) -> bool:
        """q2 does not start without its database and its broker: wait for them instead of failing over and over."""
        missing = _database_error() or broker_error()
        if missing and missing != self.missing:
            log.warning("waiting", error=missing)
        self.missing = missing
        return not missing


def _database_error() -> str:
    try:
        make_schedules(now=database_now())
    except DatabaseError as error:
        connections.close_all()
        return first_line(error)
    return ""


def _holds_lanes(pids: frozenset[int]) -> bool:
    """Whether one of these processes holds lanes; while the database cannot say, it might."""
    try:
        return Holder.objects.filter(host=this_host(), boot_id=boot_id(), pid__in=pids).exists()
    except DatabaseError:
        connections.close_all()
        return True


def _tell_of_the_end() -> None:
    try:
        a_cluster_has_ended(now=database_now())
    except DatabaseError as error:
        log.warning("end_not_noted", error=first_line(error))


def _be_the_group(supervisor: int) -> NoReturn:
    """What the forked child does with its life. Nothing of the supervisor's stack runs in it again."""
    exit_code = 1
    try:
        os.setsid()
        Bell.leave_to_child()
        die_with_parent(supervisor)
        inherit_death_with_parent()
        _run_cluster()
        exit_code = 0
    finally:
        if exit_code:
            traceback.print_exc()
        os._exit(exit_code)


def _run_cluster() -> None:
    task_counter.count_finished_tasks()
    cluster = Cluster()
    cluster.start()
    cluster.sentinel.join()
