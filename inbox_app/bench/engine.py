"""Figures of the engine by itself: accept, and claim + acknowledge beside many rows. No cluster runs meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from django.db import connection
from django.utils import timezone

from inbox_app import transitions
from inbox_app.bench import rows
from inbox_app.bench.figures import Figure, figure
from inbox_app.deliveries import Acknowledgement, Draft, Work
from inbox_app.models import Message
from sessions_app import actions, turns
from sessions_app.clock import database_now

OWNER = "bench"
PAIRS = 100  # claims with acknowledgement in one run

Say = Callable[[str], None]


class EngineBench:
    def __init__(self, *, runs: int, scale: float, say: Say) -> None:
        self._runs, self._say = runs, say
        self._history, self._many, self._hot = int(1_000_000 * scale), int(100_000 * scale), int(50_000 * scale)
        self._project = actions.create_project("bench")

    def figures(self) -> list[Figure]:
        return [*self._accepting(), *self._costs()]

    def _accepting(self) -> list[Figure]:
        targets = rows.open_targets(self._project, "accept", 20, now=timezone.now())
        self._say("accept")
        rates = []
        for _ in range(self._runs):
            began = time.perf_counter()
            for i in range(300):
                draft = Draft(self._project.pk, targets[i % 20], f"message {i}", Message.Kind.USER_MESSAGE)
                transitions.accept(draft, now=database_now())
            rates.append(300 / (time.perf_counter() - began))
        self._settle_all()
        return [figure("accept_per_s", rates, "messages/s", database=connection.vendor)]

    def _costs(self) -> list[Figure]:
        project, now = self._project, timezone.now()
        rows.open_targets(project, "few", 500, now=now)
        rows.waiting(project, "few", 500, 1000, now=now, name="few")
        alone = self._measure("claim + acknowledge at 1,000 waiting, nothing settled")
        self._say(f"loading {self._history:,} settled rows")
        rows.delivered(project, "few", 500, self._history, now=now)
        rows.analyze()
        few = self._measure("the same beside the settled rows")
        self._say(f"loading {self._many:,} waiting rows")
        rows.open_targets(project, "many", 1000, now=now)
        rows.waiting(project, "many", 1000, self._many, now=now - timedelta(hours=1), name="many")
        rows.analyze()
        many = self._measure(f"at {self._many:,} waiting")
        rows.open_targets(project, "hot", 1, now=now)
        rows.waiting(project, "hot", 1, self._hot, now=now - timedelta(hours=2), name="hot")
        rows.analyze()
        hot = self._measure(f"in one lane with {self._hot:,} waiting")
        return [
            figure("claim_ack_per_s", [1 / cost for cost in few], "messages/s", database=connection.vendor),
            _ratio("cost_ratio_history", few, alone),
            _ratio("cost_ratio_100k", many, few),
            _ratio("cost_ratio_hot_lane", hot, many),
            self._marker_ratio(),
        ]

    def _measure(self, what: str) -> list[float]:
        """Seconds for one claim with its acknowledgement, run by run."""
        self._say(what)
        _claim_and_acknowledge(10)
        return [_claim_and_acknowledge(PAIRS) / PAIRS for _ in range(self._runs)]

    def _marker_ratio(self) -> Figure:
        few, many = (self._session_with_markers(name, count) for name, count in (("m-few", 1), ("m-many", self._many)))
        rows.analyze()
        self._say(f"looking for a marker among {self._many:,}")
        return _ratio("marker_ratio_100k", [_marker_cost(many) for _ in range(self._runs)], [_marker_cost(few) for _ in range(self._runs)])

    def _session_with_markers(self, name: str, count: int) -> str:
        session = actions.open_session(self._project, now=timezone.now(), agent_id=name)
        rows.markers(session, count, now=timezone.now())
        return session.pk

    def _settle_all(self) -> None:
        while Message.objects.unsettled().exists():
            _claim_and_acknowledge(50, limit=32)


def _ratio(name: str, above: list[float], below: list[float]) -> Figure:
    pairs = [a / b for a, b in zip(sorted(above), sorted(below), strict=True)]
    return figure(name, pairs, "ratio", database=connection.vendor)


def _claim_and_acknowledge(times: int, *, limit: int = 1) -> float:
    """The turn between them is committed without entries, outside the measured time."""
    spent = 0.0
    for _ in range(times):
        began = time.perf_counter()
        found = [item for item in transitions.claim(OWNER, now=database_now(), limit=limit) if isinstance(item, Work)]
        spent += time.perf_counter() - began
        turns.commit([turns.Commit(item.turn, item.hold, entries=[], marks=[]) for item in found], now=database_now())
        began = time.perf_counter()
        transitions.acknowledge([Acknowledgement(item.hold, item.message) for item in found], now=database_now())
        spent += time.perf_counter() - began
    return spent


def _marker_cost(session_id: str) -> float:
    began = time.perf_counter()
    for i in range(PAIRS):
        turns.marked({(session_id, f"absent-{i}")})
    return (time.perf_counter() - began) / PAIRS
