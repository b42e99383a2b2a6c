"""Figures of the whole product: real web server, real cluster, as an operator would run them."""

from __future__ import annotations

import http.client
import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connection
from django.utils import timezone

from inbox_app import transitions, wake
from inbox_app.bench import rows
from inbox_app.bench.figures import Figure, figure, percentile
from inbox_app.deliveries import Draft
from inbox_app.models import Message, Wake
from sessions_app import actions
from sessions_app.clock import database_now
from sessions_app.models import Holder, Session
from suzent_site.processes import descendants

TURN = 0.5  # seconds, for the efficiency figures
PATIENCE = 120  # seconds for anything that is waited for
CLIENTS = 4  # connections of the HTTP figure

Say = Callable[[str], None]


class LiveBench:
    def __init__(self, *, runs: int, say: Say) -> None:
        self._runs, self._say = runs, say
        self._project = actions.create_project("live")
        self._memory_peak = 0.0

    def figures(self) -> list[Figure]:
        with started("web") as web:
            sends = self._http_sends()
            with started("cluster") as cluster:
                wait_for(worker_answered, "a worker")
                drain()
                pids = (web.pid, cluster.pid)
                return [*sends, *self._echo(pids), *self._latencies(), *self._efficiencies(), *self._idle(pids)]

    # --- HTTP ----------------------------------------------------------------------------------------------------
    def _http_sends(self) -> list[Figure]:
        self._say("sends over HTTP")
        wait_for(web_answers, "the web server")
        targets = rows.open_targets(self._project, "http", 20, now=timezone.now())
        token = actions.mint_token(self._project, now=timezone.now()).secret
        rates = []
        for run in range(self._runs):
            began = time.perf_counter()
            clients = [threading.Thread(target=_send_over_http, args=(token, targets, f"{run}-{i}")) for i in range(CLIENTS)]
            for client in clients:
                client.start()
            for client in clients:
                client.join()
            rates.append(CLIENTS * 100 / (time.perf_counter() - began))
        sent = Message.objects.filter(project=self._project).count()
        if sent != self._runs * CLIENTS * 100:
            raise RuntimeError(f"{sent} of {self._runs * CLIENTS * 100} sends were accepted")
        return [self._figure("http_send_per_s", rates, "messages/s")]

    # --- throughput and memory -----------------------------------------------------------------------------------
    def _echo(self, pids: tuple[int, ...]) -> list[Figure]:
        targets = rows.open_targets(self._project, "echo", 20, now=timezone.now())
        rates = []
        for run in range(self._runs):
            self._say(f"1,000 echo turns end to end, run {run + 1}")
            began = time.perf_counter()
            for i in range(1000):
                self._send(targets[i % 20], f"message {i}")
            self._memory_peak = max(self._memory_peak, memory_mb(pids))
            drain()
            rates.append(1000 / (time.perf_counter() - began))
        return [self._figure("echo_per_s", rates, "messages/s"), self._figure("memory_load_mb", [self._memory_peak], "MB")]

    # --- latency -------------------------------------------------------------------------------------------------
    def _latencies(self) -> list[Figure]:
        targets = rows.open_targets(self._project, "late", 20, now=timezone.now(), runtime="scripted")
        self._say("latency, idle")
        idle = []
        for i in range(5 * self._runs):
            wait_for(_nobody_on_duty, "the shifts to leave")
            time.sleep(0.3 + 0.017 * i)  # not in step with the broker's poll
            idle.append(self._latency(targets[i % 20]))
        self._say("latency, warm")
        warm = []
        for i in range(40 * self._runs):
            time.sleep(0.05 + 0.0007 * (i % 30))
            warm.append(self._latency(targets[i % 20]))
        return [
            Figure(f"latency_{name}_{which}_ms", round(percentile(taken, share), 1), "ms", len(taken),
                   round(min(taken), 1), round(max(taken), 1), connection.vendor)
            for name, taken in (("idle", idle), ("warm", warm))
            for which, share in (("p50", 0.5), ("p95", 0.95))
        ]  # fmt: skip

    def _latency(self, target: Session) -> float:
        """Milliseconds from before the send until the agent's turn began to run."""
        began = time.time()
        message_id = self._send(target, "hello")
        wait_for(lambda: message_id in _effects(), "the turn", every=0.002)
        return (float(_effects()[message_id]["started"]) - began) * 1000

    # --- parallel turns ------------------------------------------------------------------------------------------
    def _efficiencies(self) -> list[Figure]:
        return [self._efficiency(20), self._efficiency(200)]

    def _efficiency(self, count: int) -> Figure:
        """Wall time until all are delivered ÷ ideal, for two half-second turns a target that come due at once."""
        prefix = f"half{count}-"
        rows.open_targets(self._project, prefix, count, now=timezone.now(), runtime="scripted")
        slots = settings.SUZENT_TURN_CONCURRENCY * (settings.SUZENT_WORKERS - 1)
        ideal = math.ceil(2 * count / min(count, slots)) * TURN
        walls = []
        for run in range(self._runs):
            self._say(f"{2 * count} half-second turns over {count} targets, run {run + 1}")
            wait_for(_nobody_on_duty, "the shifts to leave")
            began = time.perf_counter()
            rows.waiting(self._project, prefix, count, 2 * count, now=database_now(), name=f"run{run}", content=f"!sleep {TURN}")
            wake.wake()
            drain()
            walls.append((time.perf_counter() - began) / ideal)
        return self._figure(f"efficiency_{count}", walls, "ratio")

    # --- idle ----------------------------------------------------------------------------------------------------
    def _idle(self, pids: tuple[int, ...]) -> list[Figure]:
        self._say("memory and processor while idle")
        wait_for(_nobody_on_duty, "the shifts to leave")
        shares = []
        for _ in range(self._runs):
            before, began = cpu_seconds(pids), time.perf_counter()
            time.sleep(5)
            shares.append(100 * (cpu_seconds(pids) - before) / (time.perf_counter() - began))
        memory = [memory_mb(pids) for _ in range(self._runs)]
        return [self._figure("memory_idle_mb", memory, "MB"), self._figure("cpu_idle_pct", shares, "% of one core")]

    def _send(self, target: Session, content: str) -> str:
        draft = Draft(self._project.pk, target, content, Message.Kind.USER_MESSAGE)
        return transitions.accept(draft, now=database_now()).message.message_id

    def _figure(self, name: str, values: list[float], unit: str) -> Figure:
        return figure(name, values, unit, database=connection.vendor)


@contextmanager
def started(command: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command of ours as a child process, ended with SIGTERM."""
    arguments = [sys.executable, str(Path(settings.BASE_DIR) / "manage.py"), command, "--parent", str(os.getpid())]
    child = subprocess.Popen(arguments, stdout=subprocess.DEVNULL)
    try:
        yield child
    finally:
        child.terminate()
        child.wait(timeout=PATIENCE)


def drain() -> None:
    wait_for(lambda: not Message.objects.unsettled().exists(), "the messages to be delivered", every=0.01)


def wait_for(is_there: Callable[[], bool], what: str, *, every: float = 0.05) -> None:
    give_up_at = time.monotonic() + PATIENCE
    while not is_there():
        if time.monotonic() > give_up_at:
            raise TimeoutError(f"bench waited {PATIENCE} s for {what}")
        time.sleep(every)


def memory_mb(pids: tuple[int, ...]) -> float:
    """What the processes and all below them really occupy: shared pages are counted once (PSS)."""
    everyone = {pid for parent in pids for pid in (parent, *descendants(parent))}
    return sum(_pss(pid) for pid in everyone) / 1024


def cpu_seconds(pids: tuple[int, ...]) -> float:
    everyone = {pid for parent in pids for pid in (parent, *descendants(parent))}
    return sum(_ticks(pid) for pid in everyone) / os.sysconf("SC_CLK_TCK")


def _pss(pid: int) -> int:
    lines = _read(f"/proc/{pid}/smaps_rollup").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("Pss:")), 0)


def _ticks(pid: int) -> int:
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12]) if fields else 0


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):  # it ended meanwhile
        return ""


def _effects() -> dict[str, dict[str, Any]]:
    lines = _read(settings.SUZENT_EFFECTS_FILE).splitlines()[-20:]
    return {effect["message_id"]: effect for effect in map(json.loads, lines)}


def worker_answered() -> bool:
    return Wake.objects.filter(answered_at__isnull=False).exists()


def _nobody_on_duty() -> bool:
    return not Holder.objects.exists()


def web_answers() -> bool:
    try:
        link = http.client.HTTPConnection(settings.SUZENT_HOST, settings.SUZENT_PORT, timeout=5)
        link.request("GET", "/healthz")
        return link.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False


def _send_over_http(token: str, targets: list[Session], name: str) -> None:
    link = http.client.HTTPConnection(settings.SUZENT_HOST, settings.SUZENT_PORT, timeout=PATIENCE)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    for i in range(100):
        body = {"agent_id": targets[i % len(targets)].pk, "message": f"message {i}", "message_id": f"http-{name}-{i}"}
        link.request("POST", "/api/tools/agent_send", json.dumps(body), headers)
        link.getresponse().read()
    link.close()
