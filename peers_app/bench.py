"""What one peer that says nothing costs the mail to the others: real cluster, devices on sockets of this process."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from django.db import connection
from django.utils import timezone

from inbox_app import transitions
from inbox_app.bench import rows
from inbox_app.bench.figures import Figure, figure, percentile
from inbox_app.bench.live import started, wait_for, worker_answered
from inbox_app.deliveries import Draft, RemoteTarget
from inbox_app.models import Message
from peers_app import tokens
from peers_app.models import Peer
from peers_app.standing import IN_USE, move
from sessions_app import actions, lanes
from sessions_app.clock import database_now
from suzent_site.transactions import durable

HEALTHY = 19  # peers; the black hole is the twentieth
ROUNDS = 10  # messages to each of them in a run
PACE = 0.03  # seconds between two sends: less than the machine can carry, so that latency is measured and no queue
WAITING = 40  # messages for the black hole

Say = Callable[[str], None]
Arrivals = dict[str, float]  # message id -> a reading of perf_counter


class PeersBench:
    def __init__(self, *, runs: int, say: Say) -> None:
        self._runs, self._say = runs, say
        self._project = actions.create_project("peers")
        self._sender = rows.open_targets(self._project, "sender", 1, now=timezone.now())[0]
        self._arrived: Arrivals = {}

    def figures(self) -> list[Figure]:
        """p95 of the time from before a send until a healthy peer has the message; the ratio is of runs that followed each other."""
        without, beside = list[float](), list[float]()
        with started("cluster"), ExitStack() as devices:
            healthy = [self._paired(devices.enter_context(device(self._arrived))) for _ in range(HEALTHY)]
            wait_for(worker_answered, "a worker")
            self._p95(healthy)  # the first mail to a peer costs more
            for run in range(self._runs):
                self._say(f"mail to {HEALTHY} peers, and beside a black hole, run {run + 1}")
                without.append(self._p95(healthy))
                with self._black_hole():
                    beside.append(self._p95(healthy))
        ratios = [high / low for high, low in zip(beside, without, strict=True)]
        return [
            figure("peers_p95_ms", without, "ms", database=connection.vendor),
            figure("peers_p95_black_hole_ms", beside, "ms", database=connection.vendor),
            figure("peers_p95_ratio", ratios, "ratio", database=connection.vendor),
        ]

    def _p95(self, peers: list[Peer]) -> float:
        sent = Arrivals()
        for _ in range(ROUNDS):
            for peer in peers:
                began = time.perf_counter()
                sent[self._send(peer)] = began
                time.sleep(PACE)
        wait_for(lambda: sent.keys() <= self._arrived.keys(), "the peers to have their mail", every=0.01)
        return percentile([(self._arrived[message_id] - began) * 1000 for message_id, began in sent.items()], 0.95)

    @contextmanager
    def _black_hole(self) -> Iterator[None]:
        """A peer with mail, that takes connections and says nothing. Each run has its own: one that failed before is tried seldom."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            hole = self._paired(f"http://127.0.0.1:{silent.getsockname()[1]}")
            for _ in range(WAITING):
                self._send(hole)
            wait_for(lambda: _in_hand(hole), "the black hole to be tried")
            yield
            move(hole, to=Peer.State.OFF, among=IN_USE, now=database_now())
        wait_for(lambda: not _in_hand(hole), "the black hole to be let go")

    def _paired(self, base_url: str) -> Peer:
        peer = Peer(project=self._project, name=base_url, base_url=base_url, state=Peer.State.READY, created_at=timezone.now())
        peer.token = tokens.mint().secret
        with durable():
            peer.save(force_insert=True)
            lanes.ensure(peer.lane_key)
        return peer

    def _send(self, peer: Peer) -> str:
        draft = Draft(
            self._project.pk, RemoteTarget(peer.agent_id, self._project.pk), "hello", Message.Kind.AGENT_MESSAGE, sender_id=self._sender.pk
        )
        return transitions.accept(draft, now=database_now()).message.message_id


def _in_hand(peer: Peer) -> bool:
    return Message.objects.processing().filter(target=peer.agent_id).exists()


@contextmanager
def device(arrived: Arrivals) -> Iterator[str]:
    """The address of a device of version 0.9.1 that takes all mail at once and notes when."""

    class Channel(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self.path != "/channels/suzent/inbox":
                self._answer(HTTPStatus.NOT_FOUND, {"detail": "Not Found"})
                return
            arrived[body["message_id"]] = time.perf_counter()
            told = {"accepted": True, "created": True, "message_id": body["message_id"], "status": "pending"}
            self._answer(HTTPStatus.ACCEPTED, told)

        def _answer(self, status: HTTPStatus, told: dict[str, object]) -> None:
            text = json.dumps(told).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Channel) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
