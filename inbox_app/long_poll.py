"""Waiting for messages to settle without a thread or a connection for each who waits.

One poller per process looks up all awaited messages at once, in a thread and on a connection of its own, and ends
when nobody waits any more. A caller that goes away is forgotten with its cancelled coroutine.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import defaultdict
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

import structlog
from django.db import InterfaceError, OperationalError, connection

from inbox_app.models import Message

log = structlog.get_logger(__name__)
POLL_SECONDS = 0.05
IDS_AT_ONCE = 500  # in one query


async def until_settled(message: int, *, seconds: float) -> None:
    """Return when the message (by primary key) has settled or is gone, and after ``seconds`` at the latest."""
    loop = asyncio.get_running_loop()
    poller = _pollers.setdefault(loop, _Poller())
    await poller.wait(message, seconds=seconds)


class _Poller:
    """The waiters of one event loop."""

    def __init__(self) -> None:
        self._waiters: defaultdict[int, set[asyncio.Future[None]]] = defaultdict(set)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="waiting")
        self._task: asyncio.Task[None] | None = None

    async def wait(self, message: int, *, seconds: float) -> None:
        settled = asyncio.get_running_loop().create_future()
        self._waiters[message].add(settled)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._poll())
        try:
            await asyncio.wait([settled], timeout=seconds)
        finally:
            self._forget(message, settled)

    def count(self) -> int:
        return sum(len(waiting) for waiting in self._waiters.values())

    def _forget(self, message: int, settled: asyncio.Future[None]) -> None:
        self._waiters[message].discard(settled)
        if not self._waiters[message]:
            del self._waiters[message]

    async def _poll(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiters:
                self._tell(await loop.run_in_executor(self._thread, _settled_among, list(self._waiters)))
                await asyncio.sleep(POLL_SECONDS)
        finally:
            self._task = None  # who comes from here on starts a new one
            self._thread.submit(_hang_up)

    def _tell(self, messages: Collection[int]) -> None:
        for message in messages:
            for settled in self._waiters.get(message, ()):
                if not settled.done():
                    settled.set_result(None)


def _hang_up() -> None:
    connection.close()


_pollers: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Poller] = weakref.WeakKeyDictionary()


def _settled_among(messages: list[int]) -> Collection[int]:
    """Those that have settled, or were purged meanwhile. None while the database is away: the next look will tell."""
    try:
        unsettled = {
            found
            for start in range(0, len(messages), IDS_AT_ONCE)
            for found in Message.objects.unsettled()
            .filter(pk__in=messages[start : start + IDS_AT_ONCE])
            .values_list("pk", flat=True)
        }
    except (OperationalError, InterfaceError) as error:
        log.warning("waiting_cannot_look", error=type(error).__name__)
        connection.close()
        return ()
    return set(messages) - unsettled


def waiters() -> int:
    """How many wait in this process."""
    return sum(poller.count() for poller in _pollers.values())
