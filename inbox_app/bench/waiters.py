"""What it costs to let 300 clients wait for their messages at once, beside sends that go on."""

from __future__ import annotations

import http.client
import json
import select
import time
from collections.abc import Callable

from django.conf import settings
from django.db import connection
from django.utils import timezone

from inbox_app.bench.figures import Figure, figure, percentile
from inbox_app.bench.live import memory_mb, started, wait_for, web_answers, worker_answered
from inbox_app.bench.rows import open_targets
from inbox_app.deliveries import Draft
from inbox_app.models import Message
from inbox_app.transitions import accept
from sessions_app import actions, lanes
from sessions_app.clock import database_now
from sessions_app.models import Session

WAITERS = 300
SENDS = 200  # one after the other, while all wait
LONGEST_WAIT = 60  # seconds; what a client may ask for at most

Say = Callable[[str], None]


class WaitersBench:
    def __init__(self, *, runs: int, say: Say) -> None:
        self._runs, self._say = runs, say
        self._project = actions.create_project("waiters")
        self._token = actions.mint_token(self._project, now=timezone.now()).secret
        self._awaited = open_targets(self._project, "awaited", 1, now=timezone.now())[0]
        self._busy = open_targets(self._project, "busy", 10, now=timezone.now())

    def figures(self) -> list[Figure]:
        """Growth is what the web server occupies more than before the first run."""
        with started("web") as web, started("cluster"):
            wait_for(web_answers, "the web server")
            wait_for(worker_answered, "a worker")
            self._send_all("warm")
            before, growths, latencies = memory_mb((web.pid,)), [], []
            for run in range(self._runs):
                self._say(f"{WAITERS} waiters, run {run + 1}")
                waiters = self._begin_to_wait()
                latencies.append(percentile(self._send_all(f"run{run}"), 0.95))
                growths.append(max(memory_mb((web.pid,)) - before, 0))
                self._see_answered(waiters)
        return [
            figure("waiters_memory_mb", growths, "MB", database=connection.vendor),
            figure("waiters_send_p95_ms", latencies, "ms", database=connection.vendor),
        ]

    def _begin_to_wait(self) -> list[http.client.HTTPConnection]:
        """For messages that are not delivered while the lane is paused."""
        lanes.pause(self._awaited.lane_key, now=database_now())
        drafts = [Draft(self._project.pk, self._awaited, f"message {i}", Message.Kind.USER_MESSAGE) for i in range(WAITERS)]
        return [self._wait_for(accept(draft, now=database_now()).message.message_id) for draft in drafts]

    def _wait_for(self, message_id: str) -> http.client.HTTPConnection:
        """Ask, and leave the answer for later."""
        link = _link()
        link.request("GET", f"/api/messages/{message_id}?wait={LONGEST_WAIT}", headers={"Authorization": f"Bearer {self._token}"})
        return link

    def _send_all(self, name: str) -> list[float]:
        return [self._send(self._busy[i % len(self._busy)], f"{name}-{i}") for i in range(SENDS)]

    def _send(self, target: Session, message_id: str) -> float:
        """Milliseconds until the send is answered, on a connection of its own."""
        began, link = time.perf_counter(), _link()
        body = {"agent_id": target.pk, "message": "hello", "message_id": message_id}
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        link.request("POST", "/api/tools/agent_send", json.dumps(body), headers)
        answer = link.getresponse()
        answer.read()
        link.close()
        if answer.status != http.HTTPStatus.ACCEPTED:
            raise RuntimeError(f"a send was answered with {answer.status}")
        return (time.perf_counter() - began) * 1000

    def _see_answered(self, waiters: list[http.client.HTTPConnection]) -> None:
        """All have waited until now, and all are answered (a test holds with what)."""
        if select.select([link.sock for link in waiters], [], [], 0)[0]:
            raise RuntimeError("a waiter was answered before its message had settled")
        lanes.resume(self._awaited.lane_key, now=database_now())
        for link in waiters:
            answer = link.getresponse()
            answer.read()
            link.close()
            if answer.status != http.HTTPStatus.OK:
                raise RuntimeError(f"a waiter was answered with {answer.status}")


def _link() -> http.client.HTTPConnection:
    return http.client.HTTPConnection(settings.SUZENT_HOST, settings.SUZENT_PORT, timeout=2 * LONGEST_WAIT)
