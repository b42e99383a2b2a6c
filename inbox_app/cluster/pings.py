"""Questions to a django-q2 group, and how long they have gone unanswered."""

from __future__ import annotations

from datetime import datetime

from inbox_app.cluster import task_counter
from inbox_app.cluster.watched_time import WatchedClock
from inbox_app.wake import ANSWER, enqueue

PING_EVERY = 10.0  # seconds between questions to a group that gives no other sign of life
ASK_AGAIN = 2.0  # seconds; a question may be lost with the broker's contents, or taken by another cluster


class Pings:
    """Asks at once, then every ten seconds, and sooner when the caller is in a hurry."""

    def __init__(self, clock: WatchedClock) -> None:
        self._clock = clock
        self._finished = task_counter.finished_tasks()
        self._answered_at = clock.now
        self._asked_at = clock.now - ASK_AGAIN
        self._waiting_since: float | None = clock.now
        self.ever_answered = False

    @property
    def unanswered_for(self) -> float:
        return 0.0 if self._waiting_since is None else self._clock.now - self._waiting_since

    def look(self, *, complete: bool, hurry: bool, now: datetime) -> None:
        """``complete`` is whether every process that the group should have is there: until then nothing counts as an answer."""
        if self._has_finished_a_task() and complete:
            self._waiting_since, self._answered_at, self.ever_answered = None, self._clock.now, True
        if self._waiting_since is None and (hurry or not complete or self._clock.now - self._answered_at >= PING_EVERY):
            self._waiting_since = self._clock.now
        if self._waiting_since is not None and self._clock.now - self._asked_at >= ASK_AGAIN:
            self._asked_at = self._clock.now
            enqueue(ANSWER, now=now)

    def _has_finished_a_task(self) -> bool:
        before, self._finished = self._finished, task_counter.finished_tasks()
        return self._finished != before
