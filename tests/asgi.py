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


async def ask(method, path, *, token="", query="", body=b"", headers=(), chunks=None, hang_up=None):
    """One request. ``chunks``: the body in parts without a Content-Length; ``hang_up``: an event that ends the client."""
    given = [(b"host", b"localhost"), *headers]
    if token:
        given.append((b"authorization", f"Bearer {token}".encode()))
    if chunks is not None:
        given.append((b"transfer-encoding", b"chunked"))
    elif body:
        given.append((b"content-length", str(len(body)).encode()))
    if (body or chunks is not None) and not any(name == b"content-type" for name, _ in given):
        given.append((b"content-type", b"application/json"))
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
