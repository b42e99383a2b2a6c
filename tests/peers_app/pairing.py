"""A paired device, and a device of version 0.9.1 as wire.md 4 describes it: how it pairs, sends, streams."""

import json
from dataclasses import dataclass, field
from typing import Any

from django.test import Client

from peers_app import grants, wire
from peers_app.models import DeviceGrant
from sessions_app.clock import database_now
from tests.people import office


@dataclass
class Device:
    """A caller of the channel. ``post`` sends JSON unless ``raw`` is given."""

    token: str = ""
    grant: DeviceGrant | None = None
    headers: dict[str, str] = field(default_factory=dict)
    client: Client = field(default_factory=lambda: Client(raise_request_exception=True))

    def get(self, path: str):
        return self.client.get(path, headers=self._headers())

    def post(self, path: str, body: Any = None, *, raw: bytes | None = None, content_type: str = "application/json", **headers: str):
        sent = raw if raw is not None else json.dumps({} if body is None else body)
        return self.client.post(path, sent, content_type=content_type, headers={**self._headers(), **headers})

    def send(self, message_id: str, content: str, **headers: str):
        return self.post("/channels/suzent/inbox", {"message_id": message_id, "content": content}, **headers)

    @property
    def agent_id(self) -> str:
        return f"suzent:{self.grant.device_id}"

    def _headers(self) -> dict[str, str]:
        return {**({"authorization": f"Bearer {self.token}"} if self.token else {}), **self.headers}


def asked(name: str = "Laptop", *, identity: str = "", address: str = ""):
    return grants.ask(wire.Asked(name, address, identity), came_from="192.0.2.7", now=database_now())


def paired(name: str = "Laptop", *, project=None, identity: str = "", address: str = "", **approval: Any) -> Device:
    """A device whose request was approved and whose token was served."""
    request = asked(name, identity=identity, address=address)
    grant = grants.approve(request, project=project or office(), who="olga", now=database_now(), **approval)
    _, token = grants.collect(request.pk, now=database_now())
    return Device(token, DeviceGrant.objects.get(pk=grant.pk))


def wrong(response, status: int, error: str | None = None) -> bool:
    """Whether the answer is this error in the protocol's one shape."""
    body = response.json()
    assert (response.status_code, set(body)) == (status, {"error"}), (response.status_code, body)
    assert isinstance(body["error"], str) and body["error"]
    assert error is None or body["error"] == error, body
    return True
