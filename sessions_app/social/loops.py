"""Threads that repeat one step until they are told to end: the social brain's hands, the pollers, the senders."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import structlog
from django.conf import settings
from django.db import InterfaceError, OperationalError, connection

from sessions_app.direct import DirectTurns
from sessions_app.social.brain import Brain
from sessions_app.social.ingress import Ingress

PAUSE_AFTER_ERROR = 1.0  # seconds
LOOK = 0.5  # seconds between looks whether to end

log = structlog.get_logger(__name__)


class Loop:
    """``step`` answers whether there was anything to do; if not, the thread rests for ``pause`` seconds."""

    def __init__(self, name: str, step: Callable[[], bool], *, closing: threading.Event, pause: float) -> None:
        self._step = step
        self._closing = closing
        self._pause = pause
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                if not self._pass():
                    self._closing.wait(self._pause)
        finally:
            connection.close()

    def _pass(self) -> bool:
        try:
            return self._step()
        except Exception:  # the border around one pass of a worker loop
            log.exception("social_pass_failed", loop=self._thread.name)
            connection.close()
            self._closing.wait(PAUSE_AFTER_ERROR)
            return False


class Hands:
    """The threads of one process that take events from its ingress queue to the brain."""

    def __init__(self, direct: DirectTurns) -> None:
        self.ingress = Ingress(room=settings.SUZENT_SOCIAL_QUEUE)
        self._closing = threading.Event()
        self._brain = Brain(direct, closing=self._closing)
        count = settings.SUZENT_SOCIAL_CONCURRENCY
        self._loops = [Loop(f"social-{n}", self._attend_next, closing=self._closing, pause=0) for n in range(count)]

    def close(self, *, patience: float) -> None:
        """Take nothing more in, and work off what waits as long as ``patience`` (seconds) lasts."""
        self.ingress.close()
        give_up_at = time.monotonic() + patience
        while not self.ingress.is_idle() and time.monotonic() < give_up_at:
            self._closing.wait(0.05)
        self._closing.set()

    def join(self) -> None:
        """After the direct turns have ended."""
        for loop in self._loops:
            loop.join(LOOK * 4)

    def _attend_next(self) -> bool:
        taken = self.ingress.take(seconds=LOOK)
        if taken is None:
            return False
        finished, broke = False, True
        try:
            finished = self._brain.attend(taken.event)
            broke = False
        except (OperationalError, InterfaceError):  # the database is away: not the event's fault
            broke = False
            raise
        finally:
            self.ingress.done(taken)
            taken.over(finished=finished, broke=broke)
        return True
