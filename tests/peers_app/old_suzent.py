"""A device of version 0.9.1, as wire.md 4 says that it behaves towards the device that it drives."""

import json
from dataclasses import dataclass, field
from typing import Any

from tests.asgi import ask

TRIES = 48


@dataclass
class OldSuzent:
    """``fails``: how many answers to its mail get lost on the way, as a cut connection would have it."""

    name: str = "Old laptop"
    request_id: str = ""
    token: str = ""
    node_identity: str = ""
    fails: int = 0
    tried: list[int] = field(default_factory=list)

    async def asks(self) -> str:
        body = {"controller_name": self.name, "controller_addr": "ws://192.0.2.9:25314/", "controller_identity": "0" * 32}
        told = await self._call("POST", "/nodes/grant-request", body)
        self.request_id = told["request_id"]
        return told["status"]

    async def polls(self) -> str:
        """It keeps the token that it is served, and takes it for granted that this happens once."""
        told = await self._call("GET", f"/nodes/grant-status/{self.request_id}")
        if "token" in told:
            self.token, self.node_identity = told["token"], told["node_identity"]
        return told["status"]

    async def delivers(self, message_id: str, content: str) -> bool:
        """Tries until a 202 says ``accepted`` and repeats the id; nothing else is an acknowledgement."""
        for _ in range(TRIES):
            answer = await ask("POST", "/channels/suzent/inbox", token=self.token, body=json.dumps({"message_id": message_id, "content": content}).encode())
            self.tried.append(answer.status)
            if self.fails:
                self.fails -= 1
                continue
            told = answer.json()
            if answer.status == 202 and told.get("accepted") is True and told.get("message_id") == message_id:
                return True
        return False

    async def reads(self) -> dict[str, Any]:
        return await self._call("GET", "/channels/suzent/session")

    async def stops(self) -> bool:
        """409 means that nothing of it was active."""
        answer = await ask("POST", "/channels/suzent/stop", token=self.token)
        assert answer.status in {200, 409}
        return answer.status == 200

    async def is_revoked(self) -> bool:
        answer = await ask("GET", "/channels/suzent/whoami", token=self.token)
        return answer.status in {401, 403} or answer.json()["peer_id"] is None

    async def streams(self, content: str, **more: Any) -> list[dict[str, Any]]:
        answer = await ask("POST", "/channels/suzent/inbound", token=self.token, body=json.dumps({"content": content, "mode": "trigger", **more}).encode())
        assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream")
        return [json.loads(line.removeprefix("data: ")) for line in answer.body.decode().splitlines() if line.startswith("data: ")]

    async def _call(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        answer = await ask(method, path, token=self.token, body=b"" if body is None else json.dumps(body).encode())
        assert answer.status == 200, answer.body
        return answer.json()
