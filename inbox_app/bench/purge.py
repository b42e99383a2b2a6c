"""What a purge costs the mail that flows meanwhile: latency with it ÷ latency without it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from django.conf import settings
from django.db import connection
from django.utils import timezone

from inbox_app import transitions
from inbox_app.bench import rows
from inbox_app.bench.figures import Figure, figure, percentile
from inbox_app.bench.live import drain, started, wait_for, worker_answered
from inbox_app.deliveries import Draft
from inbox_app.models import Message
from sessions_app import actions
from sessions_app.clock import database_now

RATE = 100  # messages a second
TARGETS = 20
WITHOUT = 30  # seconds of undisturbed flow that are the measure
SETTLED = timedelta(days=60)  # ago: past the retention, not past the dedupe days

Say = Callable[[str], None]


class PurgeBench:
    def __init__(self, *, scale: float, say: Say) -> None:
        self._count, self._say = int(1_000_000 * scale), say
        self._project = actions.create_project("purge")

    def figures(self) -> list[Figure]:
        self._targets = rows.open_targets(self._project, "flow", TARGETS, now=timezone.now(), runtime="scripted")
        self._say(f"loading {self._count:,} settled rows, each with its attempt")
        rows.delivered(self._project, "flow", TARGETS, self._count, now=timezone.now() - SETTLED)
        rows.attempts()
        rows.analyze()
        with started("cluster"):
            wait_for(worker_answered, "a worker")
            self._flow(_for_seconds(5))
            self._say(f"{RATE} messages/s without a purge")
            without = self._flow(_for_seconds(WITHOUT))
            self._say(f"{RATE} messages/s during the purge")
            began = time.monotonic()
            with purging() as is_purging:
                during = self._flow(is_purging)
            return self._compared(without, during, seconds=time.monotonic() - began)

    def _flow(self, go_on: Callable[[], bool]) -> list[float]:
        """Send at an even rate; milliseconds from the moment each message was due to be sent until its turn ran."""
        due: dict[str, float] = {}
        at = time.time()
        while go_on():
            time.sleep(max(at - time.time(), 0))
            draft = Draft(self._project.pk, self._targets[len(due) % TARGETS], "hello", Message.Kind.USER_MESSAGE)
            due[transitions.accept(draft, now=database_now()).message.message_id] = at
            at += 1 / RATE
        drain()
        ran = {effect["message_id"]: effect["started"] for effect in map(json.loads, _effects())}
        return [(ran[message_id] - moment) * 1000 for message_id, moment in due.items()]

    def _compared(self, without: list[float], during: list[float], *, seconds: float) -> list[Figure]:
        for what, taken in (("without", without), ("during", during)):
            spread = ", ".join(f"p{share * 100:g} {percentile(taken, share):.1f} ms" for share in (0.5, 0.95, 0.99))
            self._say(f"{what}: {len(taken):,} messages, {spread}, at most {max(taken):.0f} ms")
        ratio = percentile(during, 0.95) / percentile(without, 0.95)
        return [
            figure("purge_latency_ratio", [ratio], "ratio", database=connection.vendor),
            figure("purge_rows_per_s", [self._count / seconds], "messages/s", database=connection.vendor),
        ]


@contextmanager
def purging() -> Iterator[Callable[[], bool]]:
    """``manage.py inbox purge`` as a process of its own; yields whether it is still at it."""
    child = subprocess.Popen(
        [sys.executable, str(Path(settings.BASE_DIR) / "manage.py"), "inbox", "purge"], stdout=subprocess.DEVNULL, env=os.environ.copy()
    )
    try:
        yield lambda: child.poll() is None
    finally:
        child.terminate()
        child.wait()


def _for_seconds(seconds: float) -> Callable[[], bool]:
    until = time.monotonic() + seconds
    return lambda: time.monotonic() < until


def _effects() -> list[str]:
    return Path(settings.SUZENT_EFFECTS_FILE).read_text(encoding="utf-8").splitlines()
