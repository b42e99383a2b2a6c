"""One run: start, send under fire, cease fire, wait until all is settled, stop in order, judge."""

from __future__ import annotations

import random
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.acceptance.chaos.checker import Checker, Verdict
from tests.acceptance.chaos.killer import Arms, Killer
from tests.acceptance.chaos.tables import is_all_settled
from tests.acceptance.chaos.traffic import Traffic, plan
from tests.acceptance.conftest import Site

SETTLES_WITHIN = 120  # seconds after the last shot; five tries of a message that always fails take up to 40
AIMED = ("kill", "stop", "cut", "restart", "empty")  # what counts as a shot
SENT_WITHIN = 10  # times the planned duration


@dataclass(frozen=True)
class Orders:
    """What is to be played. ``seconds``: how long the sending lasts if nothing delays it."""

    seed: int
    messages: int
    seconds: float
    lease: float
    doomed: int = 0


@dataclass(frozen=True)
class Report:
    orders: Orders
    figures: dict[str, object]
    verdict: Verdict
    killer_log: list[str]

    def story(self) -> str:
        """What somebody wants to read who has to find out why."""
        faults = [f"{name} ({len(found)}): " + "; ".join(found[:8]) for name, found in self.verdict.faults().items()]
        return "\n".join([f"seed {self.orders.seed}", *self.killer_log, *faults])


def environment(orders: Orders, folder: Path) -> dict[str, str]:
    """What the installation is to be started with."""
    return {"SUZENT_LEASE_SECONDS": f"{orders.lease:g}", "SUZENT_EFFECTS_FILE": str(folder / "effects.jsonl")}


def play(site: Site, orders: Orders, arms: Arms) -> Report:
    """The site has its tables and is not up yet."""
    before = time.monotonic()
    site.up()
    began = time.monotonic()
    parcels = plan(random.Random(orders.seed), orders.messages, doomed=orders.doomed)
    traffic = Traffic(site, parcels, seed=orders.seed, seconds=orders.seconds, give_up_at=began + SENT_WITHIN * orders.seconds)
    traffic.open_sessions()
    site.token = traffic.tokens[""]
    site.post("/api/sessions", {"agent_id": "probed"}, token=site.token)
    killer = Killer(site, seed=orders.seed, lease=orders.lease, start_seconds=began - before, arms=arms)
    traffic.start()
    _under_fire(traffic, killer)
    ceased = time.monotonic()
    settled = _until_settled(site, killer)
    traffic.finish()
    stop_seconds, left = _stop(site, killer)
    checker = Checker(site, parcels, traffic.record, Path(site.environment["SUZENT_EFFECTS_FILE"]))
    figures = {
        "seconds_under_fire": round(ceased - began, 1), "settled_after": round(settled, 1), "stopped_after": round(stop_seconds, 1),
        "left_behind": left,
    }  # fmt: skip
    return _report(orders, traffic, killer, checker, figures)


def _under_fire(traffic: Traffic, killer: Killer) -> None:
    half = len(traffic.parcels) // 2
    archived = False
    while traffic.sending:
        killer.step()
        if traffic.sent >= half and not archived:
            traffic.archive_leaver()
            archived = True
        time.sleep(0.1)
    killer.hold_fire()


def _until_settled(site: Site, killer: Killer) -> float:
    """Only whoever runs services does something now: start ``up`` again if it was shot last."""
    began = time.monotonic()
    while time.monotonic() - began < SETTLES_WITHIN and not is_all_settled(site):
        killer.restart_what_ended()
        time.sleep(0.2)
    return time.monotonic() - began


def _stop(site: Site, killer: Killer) -> tuple[float, int]:
    """SIGTERM: the seconds until ``up`` had ended, and how many processes were left then."""
    killer.restart_what_ended()
    began, up = time.monotonic(), site.started[-1]
    assert site.everyone
    up.send_signal(signal.SIGTERM)
    try:
        up.wait(60)
    except subprocess.TimeoutExpired:
        return time.monotonic() - began, len(site.everyone)
    took, look_until = time.monotonic() - began, time.monotonic() + 5
    while site.everyone and time.monotonic() < look_until:
        time.sleep(0.1)
    return took, len(site.everyone)


def _report(orders: Orders, traffic: Traffic, killer: Killer, checker: Checker, figures: dict[str, object]) -> Report:
    verdict = checker.verdict()
    recoveries = checker.recoveries(killer.log)
    statuses = [row.status for row in checker.rows]
    return Report(orders, {
        "seed": orders.seed, "database": "postgresql+redis" if checker.on_postgresql else "sqlite", "lease": orders.lease,
        "sent": len(traffic.record.accepted), "refused": len(traffic.record.refused), "rows": len(checker.rows),
        "delivered": statuses.count("delivered"), "failed": statuses.count("failed"),
        **{name: len(found) for name, found in vars(verdict).items()},
        "executed_again": checker.executed_again, "lost_attempts": sum(one.outcome == "lost" for one in checker.tries),
        "shots": sum(shot.what.startswith(AIMED) for shot in killer.log), "shots_by_kind": killer.counts(),
        "answers": {str(status): count for status, count in sorted(traffic.record.answers.items())},
        "longest_recovery_after_kill": round(max((whole for whole, _ in recoveries), default=0), 1),
        "longest_recovery_after_last_shot": round(max((last for _, last in recoveries), default=0), 1),
        "longest_recovery_after_database": round(max(killer.recoveries, default=0), 1),
        **figures,
    }, verdict, killer.lines())  # fmt: skip
