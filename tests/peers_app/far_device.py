"""A device on a real socket that answers the calls of pairing as it is told to, and records them."""

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.wire import Wire, answer, wire

IDENTITY = "b" * 32
TOKEN = "T" * 43


@dataclass
class FarDevice:
    """``answers``: path (its beginning) -> status and body; what is not there is 404."""

    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    served: Wire | None = None
    url: str = ""

    def bodies(self, path: str) -> list[Any]:
        return [json.loads(request.partition(b"\r\n\r\n")[2]) for request in self.served.heard if request.split(b" ", 2)[1] == path.encode()]

    def approves(self, token: str = TOKEN, identity: str = IDENTITY) -> None:
        self.answers["/nodes/grant-status/"] = 200, {"status": "approved", "token": token, "node_identity": identity}

    def behave(self, connection, request: bytes) -> None:
        path = request.split(b" ", 2)[1].decode()
        status, body = next((found for begin, found in self.answers.items() if path.startswith(begin)), (404, {"error": "Not found"}))
        connection.sendall(answer(status, body if isinstance(body, bytes) else json.dumps(body).encode()))


@contextmanager
def far_device(**answers: Any):
    device = FarDevice({
        "/nodes/grant-request": (200, {"request_id": "r" * 22, "status": "pending"}), "/nodes/grant-status/": (200, {"status": "pending"}),
        "/nodes/peer-offer": (200, {"success": True}), "/channels/suzent/whoami": (200, {"ok": True, "peer_id": "0" * 12}),
        "/channels/suzent/grant-changed": (200, {"ok": True, "removed": 0}), **answers,
    })  # fmt: skip
    with wire(device.behave) as device.served:
        device.url = device.served.url
        yield device
