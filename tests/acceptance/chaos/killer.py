"""The killer: shoots processes of the tree, stops some past their lease, takes servers away, and writes down what it did."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from suzent_site.processes import children, descendants, process_started
from tests.acceptance.chaos.servers import Postgres, Redis
from tests.acceptance.chaos.tables import rows_if_there
from tests.acceptance.chaos.traffic import ask
from tests.acceptance.conftest import WORKERS, Site, runs
from tests.acceptance.gate import Gate

IN_ORDER_OF_BIRTH = [*["worker"] * WORKERS, "monitor", "pusher"]
KILLED = {"shift": 8, "worker": 2, "nursery": 1, "monitor": 1, "pusher": 1, "sentinel": 1, "main": 1, "supervisor": 1, "web": 3}
STOPPED = {"shift": 3, "worker": 1, "monitor": 1, "pusher": 1, "sentinel": 1, "main": 1, "supervisor": 1, "web": 1}
LEAST_PAUSE = 2.0  # seconds between shots, in the mean
RECOVERS_WITHIN = 90  # seconds after which an outage of a server counts as never recovered from


@dataclass(frozen=True)
class Shot:
    at: float  # time.time()
    what: str
    pid: int = 0
    owner: str = ""  # of the lanes that the process held
    note: str = ""


@dataclass
class Arms:
    """What may be taken away beside processes."""

    database_gate: Gate | None = None
    redis_gate: Gate | None = None
    postgres: Postgres | None = None
    redis: Redis | None = None
    reboots: bool = False  # kill ``up`` itself; whoever runs it starts it again


class Tree:
    """Who is who below ``manage.py up``."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._sentinel = 0
        self._crew: dict[int, str] = {}

    def look(self) -> dict[int, str]:
        """Pid to role. A worker that runs a shift is a ``shift``."""
        site = self._site
        main, sentinel = next(iter(children(site.supervisor)), 0), 0
        if main:
            sentinel = next(iter(children(main)), 0)
        self._tell_crew_apart(sentinel)
        found = {site.web: "web", site.supervisor: "supervisor", main: "main", sentinel: "sentinel", **self._crew}
        for worker in self._crew:
            found |= dict.fromkeys(descendants(worker), "nursery")
        for pid, _ in self.shifts():
            if found.get(pid) == "worker":
                found[pid] = "shift"
        found.pop(0, None)
        return found

    def shifts(self) -> list[tuple]:
        return rows_if_there(self._site, "SELECT pid, owner FROM sessions_app_holder WHERE kind = 'shift'") or []

    def _tell_crew_apart(self, sentinel: int) -> None:
        """By the order of birth in a new group; later who is new has the role of somebody who has gone."""
        if sentinel != self._sentinel:
            self._sentinel, self._crew = sentinel, {}
        there = sorted(children(sentinel) if sentinel else (), key=lambda pid: (process_started(pid), pid))
        vacant = [self._crew.pop(pid) for pid in [*self._crew] if pid not in there]
        for pid in [pid for pid in there if pid not in self._crew]:
            free = vacant or IN_ORDER_OF_BIRTH[len(self._crew) :] or ["worker"]
            self._crew[pid] = free[0]
            vacant = vacant[1:]


class Killer:
    """``start_seconds``: how long the installation took to start, which says how often it can be shot at on this machine."""

    def __init__(self, site: Site, *, seed: int, lease: float, start_seconds: float, arms: Arms) -> None:
        self.site, self.lease, self.arms = site, lease, arms
        self._pause = max(LEAST_PAUSE, start_seconds / 2)
        self.log: list[Shot] = []
        self.recoveries: list[float] = []  # seconds from the return of the database until mail was delivered again
        self.tree = Tree(site)
        self._rng = random.Random(f"{seed} killer")
        self._began = time.time()
        self._next_at = time.monotonic() + 1
        self._later: list[tuple[float, Callable[[], None]]] = []

    # --- the loop --------------------------------------------------------------------------------------------------
    def step(self) -> None:
        """Undo what is due to be undone, and shoot if it is time."""
        for due in [item for item in self._later if item[0] <= time.monotonic()]:
            self._later.remove(due)
            due[1]()
        assert self.site.everyone is not None, "remembers who is there, to notice orphans later"
        self.restart_what_ended()
        if time.monotonic() >= self._next_at:
            self._shoot()
            self._next_at = time.monotonic() + min(max(self._rng.expovariate(1 / self._pause), 0.2), 3 * self._pause)

    def hold_fire(self) -> None:
        """Undo everything now."""
        for _, undo in self._later:
            undo()
        self._later.clear()

    def counts(self) -> dict[str, int]:
        return dict(sorted(Counter(shot.what for shot in self.log).items()))

    def lines(self) -> list[str]:
        return [f"{shot.at - self._began:8.2f}  {shot.what:<22} {shot.pid or '':>7} {shot.owner} {shot.note}".rstrip() for shot in self.log]

    def _note(self, what: str, pid: int = 0, *, owner: str = "", note: str = "") -> None:
        self.log.append(Shot(time.time(), what, pid, owner, note))

    # --- choosing --------------------------------------------------------------------------------------------------
    def _shoot(self) -> None:
        choices: dict[Callable[[], None], int] = {self._kill_somebody: sum(KILLED.values()), self._stop_somebody: sum(STOPPED.values())}
        choices[self._empty_broker] = 1
        arms = self.arms
        for there, act, weight in [
            (arms.database_gate, self._cut_database, 2), (arms.redis_gate, self._cut_redis, 2), (arms.postgres, self._restart_postgres, 2),
            (arms.redis, self._restart_redis, 2), (arms.reboots, self._reboot, 1),
        ]:
            if there:
                choices[act] = weight
        self._rng.choices([*choices], [*choices.values()])[0]()

    def _somebody(self, weights: dict[str, int]) -> tuple[int, str, str]:
        """A process of a role drawn by weight, and the owner of its lanes; of another role where there is none."""
        roles, owners = self.tree.look(), dict(self.tree.shifts())
        there = sorted({role for role in roles.values() if role in weights})
        draw = self._rng.random()  # always one draw, so that what is there does not shift the sequence
        if not there:
            return 0, "", ""
        role = random.Random(draw).choices(there, [weights[role] for role in there])[0]
        pid = sorted(pid for pid, its in roles.items() if its == role)[int(draw * 1000) % sum(its == role for its in roles.values())]
        return pid, role, owners.get(pid, "")

    # --- processes -------------------------------------------------------------------------------------------------
    def _kill_somebody(self) -> None:
        pid, role, owner = self._somebody(KILLED)
        if pid:
            self._note(f"kill {role}", pid, owner=owner)
            _signal(pid, signal.SIGKILL)

    def _stop_somebody(self) -> None:
        pid, role, owner = self._somebody(STOPPED)
        if not pid:
            return
        past_lease = self._rng.random() < 0.5
        pause = self.lease + self._rng.uniform(1, 3) if past_lease else self._rng.uniform(0.3, 2)
        started = process_started(pid)
        self._note(f"stop {role}", pid, owner=owner, note=f"for {pause:.1f} s")
        _signal(pid, signal.SIGSTOP)
        self._after(pause, lambda: self._continue(pid, started, role))

    def _continue(self, pid: int, started: int, role: str) -> None:
        if runs(pid, started):
            self._note(f"continue {role}", pid)
            _signal(pid, signal.SIGCONT)

    def _reboot(self) -> None:
        self._note("kill up", self.site.started[-1].pid)
        self.site.started[-1].kill()

    def restart_what_ended(self) -> None:
        """As whoever runs services would: ``up`` was killed, or found no database to start with."""
        up = self.site.started[-1]
        if up.poll() is not None:
            self._note("up started again", note=f"it ended with {up.returncode}")
            self.site.start("up")

    # --- servers ---------------------------------------------------------------------------------------------------
    def _empty_broker(self) -> None:
        if not self.site.redis_url or self.arms.redis is None or self.arms.redis.is_there():
            self._note("empty the broker")
            self.site.empty_broker()

    def _cut_redis(self) -> None:
        gate, pause = self.arms.redis_gate, self._rng.uniform(0.3, 6)
        assert gate
        if gate.is_open:
            self._note("cut redis", note=f"for {pause:.1f} s")
            gate.shut()
            self._after(pause, gate.open)

    def _restart_redis(self) -> None:
        redis = self.arms.redis
        assert redis
        self._note("restart redis")
        redis.stop()
        redis.start()

    def _cut_database(self) -> None:
        gate, pause = self.arms.database_gate, self._rng.uniform(0.2, 5)
        assert gate
        self._note("cut database", note=f"for {pause:.1f} s")
        gate.shut()
        time.sleep(pause)
        gate.open()
        self._see_recovery("cut database")

    def _restart_postgres(self) -> None:
        postgres, crash = self.arms.postgres, self._rng.random() < 0.5
        assert postgres
        self._note("restart postgresql", note="as after a crash" if crash else "in order")
        postgres.stop(Postgres.CRASH if crash else Postgres.FAST)
        time.sleep(self._rng.uniform(0, 3))
        postgres.start()
        self._see_recovery("restart postgresql")

    def _see_recovery(self, what: str) -> None:
        """The server is back: hold fire until mail is delivered again, and write down how long that took."""
        self._note("database is back")
        self.hold_fire()
        began, number = time.monotonic(), len(self.log)
        while not self._delivers(f"probe-{number}") and time.monotonic() - began < RECOVERS_WITHIN:
            self.restart_what_ended()
            time.sleep(0.1)
        took = time.monotonic() - began
        self.recoveries.append(took)
        self._note("recovered", note=f"{took:.1f} s after: {what}")

    def _delivers(self, message_id: str) -> bool:
        """Whether a message sent now through the front door is delivered."""
        body = {"agent_id": "probed", "message": "are you there?", "message_id": message_id}
        if ask(self.site.port, "POST", "/api/tools/agent_send", token=self.site.token, body=body).status != 202:
            return False
        return rows_if_there(self.site, "SELECT status FROM agent_inbox_messages WHERE message_id = ?", message_id) == [("delivered",)]

    def _after(self, pause: float, undo: Callable[[], None]) -> None:
        self._later.append((time.monotonic() + pause, undo))


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
