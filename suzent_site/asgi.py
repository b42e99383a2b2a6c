"""The ASGI application that uvicorn serves: Django on a few long-lived threads.

Django's own handler gives every request a fresh thread, hence a fresh database connection (with persistent ones each
stays open: PostgreSQL runs out of them), and takes a dozen hops between event loop and thread for its middleware. Here
a request makes three hops to one of a few fixed threads, whose connections persist: about twice the sends per second.
A view that wants to wait says so (see ``COME_BACK``) and holds no thread meanwhile.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import django
from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.conf import settings
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.base import BaseHandler
from django.db import connections
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.module_loading import import_string

from suzent_site.errors import BodyTooLarge, SuzentError

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "suzent_site.settings")

Scope = dict[str, Any]
Event = Mapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

THREADS = 8
READ_AWAY_LIMIT = 32 * 1024 * 1024  # bytes of a refused body that we still take from the socket
PEER_PATHS = ("/channels/", "/nodes/")  # of the peer protocol, whose errors have a shape of their own
OUR_PATHS = ("/channels/social/",)  # among them
# A response may carry a coroutine function under this name: await it, then ask the view once more.
COME_BACK = "come_back"


class Desks:
    """Fixed threads to serve requests on; each new request goes to the one that has fewest."""

    def __init__(self, count: int) -> None:
        self._open = {ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"desk-{n}"): 0 for n in range(count)}

    @contextmanager
    def one(self) -> Iterator[ThreadPoolExecutor]:
        desk = min(self._open, key=lambda desk: self._open[desk])
        self._open[desk] += 1
        try:
            yield desk
        finally:
            self._open[desk] -= 1

    def hang_up(self) -> None:
        """Close the database connections of all desks."""
        for done in [desk.submit(connections.close_all) for desk in self._open]:
            done.result()


class DeskHandler(ASGIHandler):
    """Django's ASGI handler with the whole middleware chain run synchronously, in one hop to the request's desk."""

    def __init__(self) -> None:
        super().__init__()
        self._desks = Desks(THREADS)
        self._chain = BaseHandler()
        self._chain.load_middleware(is_async=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        with self._desks.one() as desk:
            async with ThreadSensitiveContext(executor=desk):
                await self.handle(scope, receive, send)

    async def _live(self, receive: Receive, send: Send) -> None:
        """The server's start and stop: those who run things here begin and end them, and at the stop the desks hang up."""
        await receive()
        for path in settings.AT_WEB_START:
            await sync_to_async(_alone, thread_sensitive=False)(import_string(path))
        await send({"type": "lifespan.startup.complete"})
        await receive()
        for path in settings.AT_WEB_END:
            await sync_to_async(_alone, thread_sensitive=False)(import_string(path))
        await sync_to_async(self._desks.hang_up, thread_sensitive=False)()
        await send({"type": "lifespan.shutdown.complete"})

    async def get_response_async(self, request: HttpRequest) -> HttpResponseBase:
        answer = sync_to_async(self._chain.get_response, thread_sensitive=True)
        response = await answer(request)
        come_back: Callable[[], Awaitable[None]] | None = getattr(response, COME_BACK, None)
        if come_back is not None:
            await come_back()
            response = await answer(request)
        return response


def _alone(act: Callable[[], object]) -> None:
    """In a thread that is not used again: its database connections are closed behind it."""
    try:
        act()
    finally:
        connections.close_all()


class BodyLimit:
    """Answers 413 before a body past the limit is stored anywhere, whether its length was announced or not.

    A body that comes in chunks gets a Content-Length: REST framework takes one without for empty.
    """

    def __init__(self, application: Application) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        try:
            length = _announced(scope)
            if length is None and _is_chunked(scope):
                scope, receive = await _gathered(scope, receive)
            elif length is not None and length > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
                raise BodyTooLarge
        except BodyTooLarge as error:
            await _read_away(receive)
            await _answer(error, send, peer=_is_of_a_peer(scope["path"]))
            return
        await self._application(scope, receive, send)


def _is_of_a_peer(path: str) -> bool:
    return path.startswith(PEER_PATHS) and not path.startswith(OUR_PATHS)


def _announced(scope: Scope) -> int | None:
    digits = dict(scope["headers"]).get(b"content-length", b"")
    return int(digits) if digits.isdigit() else None


def _is_chunked(scope: Scope) -> bool:
    return b"transfer-encoding" in dict(scope["headers"])


async def _gathered(scope: Scope, receive: Receive) -> tuple[Scope, Receive]:
    """The same request with its whole body in one event and its length among the headers."""
    body = bytearray()
    more = True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            return scope, _then(event, receive)
        body += event.get("body", b"")
        more = event.get("more_body", False)
        if len(body) > settings.DATA_UPLOAD_MAX_MEMORY_SIZE:
            raise BodyTooLarge
    headers = [*scope["headers"], (b"content-length", str(len(body)).encode("ascii"))]
    return {**scope, "headers": headers}, _then({"type": "http.request", "body": bytes(body)}, receive)


def _then(event: Event, receive: Receive) -> Receive:
    """A receive that gives ``event`` first."""
    first = [event]

    async def next_event() -> Event:
        return first.pop() if first else await receive()

    return next_event


async def _read_away(receive: Receive) -> None:
    """Let the client finish, within reason: one that is cut off while it sends never reads the answer."""
    room = READ_AWAY_LIMIT
    more = True
    while more and room > 0:
        event = await receive()
        room -= len(event.get("body", b""))
        more = event.get("more_body", False)


async def _answer(error: SuzentError, send: Send, *, peer: bool) -> None:
    """``peer``: in the one shape of the peer protocol, by which another device knows that it is refused for good."""
    body = json.dumps({"error": error.detail} if peer else error.as_json()).encode("ascii")
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode("ascii"))]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


django.setup(set_prefix=False)
application: Application = BodyLimit(DeskHandler())
