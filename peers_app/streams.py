"""``inbound``: a device's turn, run in a thread of its own and watched by whoever reads the stream.

The turn belongs to the lane holder of the web process, not to the reader: one who goes away, or reads slowly, neither
ends nor delays it, and it is committed like any other. Reading holds no thread.
"""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError, connection

from peers_app import devices
from peers_app.attachments import Attachment, pull
from peers_app.authentication import DRIVING
from peers_app.events import Script
from peers_app.models import DeviceGrant
from peers_app.wire import Unauthorized
from sessions_app import direct
from sessions_app.actions import SessionGone
from sessions_app.direct import DirectTurn, Ended, LaneBusy, Order
from sessions_app.models import Session, Turn
from sessions_app.runtimes.base import TurnInput
from sessions_app.transcripts import PROVENANCE
from suzent_site.errors import SuzentError

LANE_WAIT = 60.0  # seconds; design 8
BACKLOG = 4 * 1024 * 1024  # characters that a reader may be behind
RETRY_AFTER = 2  # seconds

log = structlog.get_logger(__name__)


class NotNow(SuzentError):
    """The session is busy. Try again in a moment."""

    code = "busy"
    status = 503


@dataclass(frozen=True)
class Inbound:
    """What a device wants to have answered."""

    grant: DeviceGrant
    session: Session
    content: str
    attachments: tuple[Attachment, ...]
    hops: int  # how long the chain is that it belongs to
    received_at: datetime


class Stream:
    """One run and its reader. Made on the thread that serves the request; ``ready`` and ``blocks`` belong to the event loop."""

    def __init__(self, inbound: Inbound) -> None:
        self._inbound = inbound
        self._run_id = secrets.token_hex(16)
        self._script = Script(inbound.session.agent_id, self._run_id)
        self._blocks: deque[str] = deque()
        self._behind = 0  # characters in ``_blocks``
        self._left = self._over = self._is_behind = False
        self._news = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._wake = asyncio.Event()
        self._begun = threading.Event()
        self.refusal: SuzentError | None = None

    # --- the reader ----------------------------------------------------------------------------------------------
    async def ready(self) -> None:
        """Begin, and return when the turn has begun or was refused (``refusal``)."""
        self._loop = asyncio.get_running_loop()
        if not _places.take(self._inbound.grant.device_id):
            self.refusal = NotNow(retry_after=RETRY_AFTER)
            return
        threading.Thread(target=self._run, name=f"inbound-{self._run_id[:8]}", daemon=True).start()
        while not self._begun.is_set():
            await self._something_new()

    async def blocks(self) -> AsyncIterator[str]:
        """The stream, to its end. Who stops reading is forgotten; the turn goes on."""
        try:
            over = False
            while not over:
                over = self._over  # before the last look: what is said last is said before it is over
                while (block := self._next()) is not None:
                    yield block
                if not over:
                    await self._something_new()
        finally:
            self._left = True
            self._blocks.clear()

    async def _something_new(self) -> None:
        await self._wake.wait()
        self._wake.clear()

    def _next(self) -> str | None:
        with self._news:
            if not self._blocks:
                return None
            block = self._blocks.popleft()
            self._behind -= len(block)
            return block

    # --- the turn ------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        blocks: Iterable[str] = self._script.fail("It broke in the middle.")
        try:
            begun = self._begin()
            if begun is not None:
                blocks = self._words_of(begun.finish())
        except (OperationalError, InterfaceError) as error:
            log.warning("inbound_broke", agent_id=self._inbound.session.agent_id, error=type(error).__name__)
        finally:
            self._end(blocks)
            _places.give_back(self._inbound.grant.device_id)
            connection.close()

    def _begin(self) -> DirectTurn | None:
        try:
            files = pull(self._inbound.attachments, grant=self._inbound.grant)
            begun = direct.of_web().begin(self._order(files), wait=LANE_WAIT)
        except LaneBusy:
            self.refusal = NotNow(retry_after=RETRY_AFTER)
            return None
        except SessionGone:
            self.refusal = devices.SessionEnded()
            return None
        except SuzentError as error:
            self.refusal = error
            return None
        self._say(self._script.begin())
        self._begun.set()
        self._ring()
        return begun

    def _end(self, blocks: Iterable[str]) -> None:
        """Whatever happened, the reader gets an answer: the end of the run, or why it did not begin."""
        if self._begun.is_set():
            if self._is_behind:
                blocks = self._script.fail("The stream was read too slowly. The session has the whole reply.")
            for block in blocks:
                self._say(block, to_the_last=True)
        elif self.refusal is None:
            self.refusal = NotNow(retry_after=RETRY_AFTER)
        self._over = True
        self._begun.set()
        self._ring()

    def _order(self, files: list[dict[str, Any]]) -> Order:
        inbound = self._inbound
        header = {
            "type": PROVENANCE, "message_id": self._run_id, "kind": "remote_agent_message", "sender": None,
            "sender_label": devices.label_of(inbound.grant), "in_reply_to": None, "accepted_at": inbound.received_at.isoformat(),
            **({"attachments": files} if files else {}),
        }  # fmt: skip
        given = TurnInput(self._run_id, "remote_agent_message", inbound.content, header=header)
        return Order(inbound.session, Turn.Origin.PEER, (given,), handled=self._run_id, hops=inbound.hops + 1, check=self._check, emit=self._emit)

    def _check(self) -> None:
        """The grant may have ended, or been narrowed, while its device waited for the lane."""
        if not DeviceGrant.objects.active().filter(pk=self._inbound.grant.pk, scope__in=DRIVING).exists():
            raise Unauthorized

    def _emit(self, event: Mapping[str, Any]) -> None:
        block = self._script.emitted(event)
        if block is not None:
            self._say(block)

    def _words_of(self, ended: Ended) -> Iterator[str]:
        if ended.state == Turn.State.STOPPED or (ended.state == Turn.State.COMMITTED and not ended.thought.error):
            return self._script.end(text=ended.text, usage=ended.thought.result.usage if ended.thought.result else {})
        return self._script.fail(ended.thought.error or "The turn lost its lane; nothing of it was kept.")

    def _say(self, block: str, *, to_the_last: bool = False) -> None:
        """Put it before the reader. One who is too far behind hears no more but how it ended; one who left, nothing."""
        with self._news:
            self._is_behind = self._is_behind or self._behind > BACKLOG
            if self._left or (self._is_behind and not to_the_last):
                return
            self._blocks.append(block)
            self._behind += len(block)
        self._ring()

    def _ring(self) -> None:
        try:
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._wake.set)
        except RuntimeError:  # the loop is closed: the server has ended, and so have its readers
            log.info("reader_gone", agent_id=self._inbound.session.agent_id)


class Places:
    """Room for ``most`` runs at once in this process; a quarter of it for one device, so that it cannot keep the others out."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken: Counter[str] = Counter()
        self._lock = threading.Lock()

    def take(self, device_id: str) -> bool:
        with self._lock:
            if self._taken.total() >= self._most or self._taken[device_id] >= max(self._most // 4, 1):
                return False
            self._taken[device_id] += 1
            return True

    def give_back(self, device_id: str) -> None:
        with self._lock:
            self._taken -= Counter({device_id: 1})


_places = Places(settings.SUZENT_TURN_CONCURRENCY)
