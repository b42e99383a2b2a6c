"""The lane holder: what every process that holds lanes runs beside its work.

One thread renews the leases every third of a lease and sees stop requests within a second. The heartbeat is not its
business: the claim loop writes it, so that a claim loop that hangs is seen.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from dataclasses import dataclass

import structlog
from django.db import DatabaseError, InterfaceError, connection

from sessions_app import lanes
from sessions_app.clock import database_now
from sessions_app.models import Holder, Turn
from suzent_site.processes import boot_id, process_started, this_host, uptime
from suzent_site.transactions import durable, until_answered

LOOK_EVERY = 0.5  # seconds between looks for stop requests
BEAT_EVERY = 0.5  # seconds between heartbeats that say nothing new
FAREWELL = 5.0  # seconds it tries to reach the database for; whoever comes after it in this process makes up for it
LIVE_FOR = 3.0  # seconds after its last beat for which a holder counts as living

log = structlog.get_logger(__name__)


@dataclass
class Watched:
    """A turn in progress, as its holder sees it."""

    turn_id: int | None
    stop: threading.Event


class LaneHolder:
    """Keeps the leases of one process alive. Use as a context manager."""

    def __init__(self, kind: Holder.Kind, *, free: int = 0) -> None:
        """``free``: how many turns it would take from the start on."""
        self.owner = f"{kind}-{os.getpid()}-{secrets.token_hex(6)}"
        self._kind = kind
        self._free = free
        self._watched: dict[str, Watched] = {}
        self._seen: set[str] = set()  # watched at some time since the last renewal
        self._doubtful: set[str] = set()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lane-holder", daemon=True)
        self._beaten = (free, 0.0)

    def __enter__(self) -> LaneHolder:
        self._bury_forerunners()
        with durable():
            Holder.objects.create(
                owner=self.owner, kind=self._kind, host=this_host(), boot_id=boot_id(), pid=os.getpid(),
                process_started=process_started(os.getpid()), free=self._free, beat_at=database_now(), renewed_uptime=uptime(),
            )  # fmt: skip
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._ended.set()
        self._thread.join()
        until_answered(lambda: _say_goodbye(self.owner), give_up_at=time.monotonic() + FAREWELL)

    def _bury_forerunners(self) -> None:
        """Who held lanes in this very process before, and could not say goodbye to a database that was away.

        Its silence would be taken for ours, and this process killed for it.
        """
        here = Holder.objects.filter(
            kind=self._kind, host=this_host(), boot_id=boot_id(), pid=os.getpid(), process_started=process_started(os.getpid())
        )
        for owner in here.values_list("owner", flat=True):
            _say_goodbye(owner)

    def watch(self, key: str, turn_id: int | None) -> threading.Event:
        """Look out for a stop request of this turn, if it is one; the event is set when one comes, or when the lane is lost."""
        watched = Watched(turn_id, threading.Event())
        self._watched[key] = watched
        self._seen.add(key)
        return watched.stop

    def forget(self, key: str) -> None:
        self._watched.pop(key, None)

    def beat(self, *, free: int) -> None:
        """Say that the claim loop lives and how many turns it would take.

        Written at once when it becomes full or has room again, else twice a second.
        """
        told, at = self._beaten
        if (free > 0) == (told > 0) and time.monotonic() - at < BEAT_EVERY:
            return
        with durable():
            Holder.objects.filter(pk=self.owner).update(free=free, beat_at=database_now())
        self._beaten = (free, time.monotonic())

    def _run(self) -> None:
        renewed = time.monotonic()
        while not self._ended.wait(LOOK_EVERY):
            try:
                self._see_stops()
                if time.monotonic() - renewed >= lanes.lease().total_seconds() / 3:
                    renewed = time.monotonic()
                    self.renew()
            except (DatabaseError, InterfaceError) as error:
                log.warning("holder_cannot_reach_database", owner=self.owner, error=str(error))
                connection.close()
        connection.close()

    def _see_stops(self) -> None:
        running = [watched for watched in list(self._watched.values()) if not watched.stop.is_set()]
        by_turn = {watched.turn_id: watched for watched in running if watched.turn_id is not None}
        asked = Turn.objects.stop_requested().filter(pk__in=by_turn).values_list("pk", flat=True) if by_turn else []
        for turn_id in asked:
            by_turn[turn_id].stop.set()

    def renew(self) -> None:
        """Extend the leases; stop the turns whose lane was lost, free the lanes that nobody here works on."""
        watched = dict(self._watched)  # before the leases are read: what is claimed meanwhile has not been lost
        seen, self._seen = self._seen, set(watched)
        held = lanes.renew(self.owner, now=database_now())
        with durable():
            Holder.objects.filter(pk=self.owner).update(renewed_uptime=uptime())
        self._stop_what_was_lost(watched, held)
        self._free_what_was_dropped(held - seen - watched.keys())

    def _stop_what_was_lost(self, watched: dict[str, Watched], held: set[str]) -> None:
        for key in watched.keys() - held & self._watched.keys():
            log.warning("lane_lost", key=key, owner=self.owner)
            watched[key].stop.set()

    def _free_what_was_dropped(self, unknown: set[str]) -> None:
        """Free lanes that nobody here has worked on since the renewal before the last: the answer to some transaction was lost."""
        dropped = unknown & self._doubtful
        self._doubtful = unknown - dropped
        if dropped:
            lanes.end_leases(self.owner, now=database_now(), keys=dropped)
            log.warning("lanes_freed", keys=sorted(dropped), owner=self.owner)


def _say_goodbye(owner: str) -> None:
    """Normally it holds nothing any more: what failed to be settled waits for no lease."""
    lanes.end_leases(owner, now=database_now())
    with durable():
        Holder.objects.filter(pk=owner).delete()
