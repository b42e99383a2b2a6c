"""The bounded queue in memory of the process that takes events in: in order within a session, side by side otherwise."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from sessions_app.social.events import IncomingEvent


def _nobody_asks(*, finished: bool, broke: bool = False) -> None:
    """For events that come once and are never offered again."""


@dataclass(frozen=True)
class Taken:
    """``over(finished=…, broke=…)`` tells whoever took the event in whether it is done with; if not, it may be offered again.

    ``broke``: it was too much for us, so offering it again may end in the same way.
    """

    event: IncomingEvent
    over: Callable[..., None] = _nobody_asks


class Ingress:
    def __init__(self, *, room: int) -> None:
        self._room = room
        self._waiting: deque[Taken] = deque()
        self._at_work: set[str] = set()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, taken: Taken) -> bool:
        """False: there is no room, or the process is about to end."""
        with self._changed:
            if self._closed or len(self._waiting) >= self._room:
                return False
            self._waiting.append(taken)
            self._changed.notify()
            return True

    def take(self, *, seconds: float) -> Taken | None:
        """The oldest event of a session that nobody works for; call ``done`` with it. None: there was none for so long."""
        with self._changed:
            self._changed.wait_for(lambda: self._next() is not None, timeout=seconds)
            found = self._next()
            if found is not None:
                self._waiting.remove(found)
                self._at_work.add(found.event.session_id)
            return found

    def done(self, taken: Taken) -> None:
        with self._changed:
            self._at_work.discard(taken.event.session_id)
            self._changed.notify_all()

    def close(self) -> None:
        """Take nothing in any more; what waits may still be worked off."""
        with self._changed:
            self._closed = True

    def is_idle(self) -> bool:
        with self._changed:
            return not self._waiting and not self._at_work

    def _next(self) -> Taken | None:
        return next((taken for taken in self._waiting if taken.event.session_id not in self._at_work), None)
