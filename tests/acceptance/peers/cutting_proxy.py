"""A proxy between two installations that loses answers: the request has arrived and has had its effect, nobody says so."""

from __future__ import annotations

import random
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.wire import Wire, request_from, wire


@dataclass
class CuttingProxy:
    """``loses``: the share of answers to mail that it drops."""

    port: int
    loses: float
    dice: random.Random = field(default_factory=lambda: random.Random(91))
    seen: Counter[str] = field(default_factory=Counter)
    served: Wire | None = None

    @property
    def url(self) -> str:
        return self.served.url

    def pass_on(self, connection: socket.socket, request: bytes) -> None:
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as behind:
            behind.sendall(request)
            answer = request_from(behind)
        if b"/channels/suzent/inbox" in request.partition(b"\r\n")[0]:
            lost = self.dice.random() < self.loses
            self.seen["lost" if lost else "passed"] += 1
            if lost:
                return
        connection.sendall(answer)


@contextmanager
def cutting_proxy(port: int, *, loses: float) -> Iterator[CuttingProxy]:
    proxy = CuttingProxy(port, loses)
    with wire(proxy.pass_on) as proxy.served:
        yield proxy
