"""A client that speaks ASGI to the product's own application, as uvicorn does."""

import asyncio
import json
from dataclasses import dataclass

from suzent_site.asgi import application


@dataclass
class Answer:
    status: int
    headers: dict
    body: bytes

    def json(self):
        return json.loads(self.body)


class Gone(Exception):
    """The client hung up before the answer."""


async def stop():
    """Stop the application as its server would, so that it closes its database connections."""
    events = [{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}]

    async def receive():
        return events.pop(0)

    async def send(event):
        assert event["type"].endswith(".complete")

    await application({"type": "lifespan"}, receive, send)


async def ask(method, path, *, token="", query="", body=b"", headers=(), chunks=None, hang_up=None):
    """One request. ``chunks``: the body in parts without a Content-Length; ``hang_up``: an event that ends the client."""
    given = [(b"host", b"localhost"), (b"content-type", b"application/json"), *headers]
    given += [(b"authorization", f"Bearer {token}".encode())] if token else []
    given += [(b"transfer-encoding", b"chunked")] if chunks is not None else []
    given += [(b"content-length", str(len(body)).encode())] if body else []
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "path": path, "raw_path": path.encode(),
        "query_string": query.encode(), "headers": given, "scheme": "http", "server": ("localhost", 80), "client": ("127.0.0.1", 1),
        "root_path": "",
    }  # fmt: skip
    parts = list(chunks) if chunks is not None else [body]
    sent = []

    async def receive():
        if parts:
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}
        await (hang_up or asyncio.Event()).wait()
        return {"type": "http.disconnect"}

    async def send(event):
        sent.append(event)

    await application(scope, receive, send)
    if not sent:
        raise Gone
    headers = {name.decode().lower(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], headers, b"".join(event.get("body", b"") for event in sent[1:]))
