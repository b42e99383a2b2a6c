"""A device of Suzent 0.9.1 that granted us control, on a real socket (wire.md 3), and everything that can be wrong with it.

It records every byte that it is sent. ``inbox`` takes what the next mails get instead of an honest answer: a function of
the connection, or an answer's bytes. ``lose`` lets it take the mail and then lose the answer.
"""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.wire import Wire, answer, wire

TOKEN = "p" * 43
DEVICE = "d" * 12


@dataclass
class Peer091:
    token: str = TOKEN
    stored: dict[str, str] = field(default_factory=dict)  # message id -> content, in the order in which they were taken
    posts: list[str] = field(default_factory=list)  # the message id of each POST, also of those that were not taken
    hops: list[str] = field(default_factory=list)
    inbox: list[Any] = field(default_factory=list)
    session: dict[str, Any] = field(default_factory=dict)
    stop: tuple[int, dict[str, Any]] = (200, {"stopped": True, "agent_id": f"suzent:{DEVICE}"})
    at_once: int = 0  # POSTs in hand now
    most_at_once: int = 0
    served: Wire | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def url(self) -> str:
        return self.served.url

    @property
    def port(self) -> int:
        return self.served.port

    def behave(self, connection: Any, request: bytes) -> None:
        head, _, body = request.partition(b"\r\n\r\n")
        if f"\r\nauthorization: bearer {self.token}".encode() not in head.lower():
            connection.sendall(as_json(401, {"error": "Unauthorized"}))
            return
        method, path = head.split(b" ", 2)[:2]
        name = path.decode().removeprefix("/channels/suzent/")
        if name == "inbox":
            self._take(connection, head, json.loads(body))
        elif name == "whoami":
            connection.sendall(as_json(200, {"ok": True, "peer_id": DEVICE}))
        elif name == "session":
            connection.sendall(as_json(200, self.session or empty_session()))
        elif name == "stop":
            connection.sendall(as_json(*self.stop))
        else:
            connection.sendall(as_json(404, {"detail": "Not Found"}))

    def _take(self, connection: Any, head: bytes, mail: dict[str, Any]) -> None:
        with self.lock:
            self.posts.append(mail["message_id"])
            self.hops.append(next((line.split(b": ")[1].decode() for line in head.split(b"\r\n") if line.lower().startswith(b"x-suzent-hops")), ""))
            self.at_once += 1
            self.most_at_once = max(self.most_at_once, self.at_once)
            instead = self.inbox.pop(0) if self.inbox else None
        try:
            if instead is None:
                connection.sendall(self.honest(mail))
            elif isinstance(instead, bytes):
                connection.sendall(instead)
            else:
                instead(connection, mail)
        finally:
            with self.lock:
                self.at_once -= 1

    def honest(self, mail: dict[str, Any]) -> bytes:
        assert set(mail) == {"message_id", "content"}
        message_id, content = mail["message_id"].strip(), mail["content"].strip()
        with self.lock:
            created = message_id not in self.stored
            if self.stored.setdefault(message_id, content) != content:
                return as_json(409, {"error": "message_id has been used for other content"})
        return as_json(202, {"accepted": True, "created": created, "message_id": message_id, "status": "pending"})

    def lose(self, connection: Any, mail: dict[str, Any]) -> None:
        """Take the mail, and never say so."""
        self.honest(mail)


def as_json(status: int, body: Any, *headers: str) -> bytes:
    return answer(status, json.dumps(body).encode(), "Content-Type: application/json", *headers)


def accepted(message_id: str, **changed: Any) -> bytes:
    return as_json(202, {"accepted": True, "created": True, "message_id": message_id, "status": "pending", **changed})


def empty_session() -> dict[str, Any]:
    return {
        "agent_id": f"suzent:{DEVICE}", "status": "idle", "messages": [], "message_count": 0, "omitted_message_count": 0,
        "transcript_truncated": False,
    }  # fmt: skip


@contextmanager
def peer_091(behave: Callable[..., object] | None = None, **about: Any) -> Iterator[Peer091]:
    peer = Peer091(**about)
    with wire(behave or peer.behave) as peer.served:
        yield peer
