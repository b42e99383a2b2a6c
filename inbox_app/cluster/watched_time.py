"""Time that counts for the watchdog.

It stands still while what is watched could not have answered: during an outage of the database or the broker, and
while the watching process itself did not run. So an outage, a suspended machine or a clock that somebody sets is
nobody's fault, and no reading of one clock is ever compared with another clock's.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Hashable


class WatchedClock:
    """Seconds since its making, of which every gap between two ticks counts for one at most."""

    def __init__(self) -> None:
        self.now = 0.0
        self._ticked_at = time.monotonic()

    def tick(self) -> None:
        reading = time.monotonic()
        self.now += min(reading - self._ticked_at, 1.0)
        self._ticked_at = reading


class Unchanged:
    """Remembers since when each thing has had its present value."""

    def __init__(self, clock: WatchedClock) -> None:
        self._clock = clock
        self._seen: dict[Hashable, tuple[object, float]] = {}

    def seconds(self, key: Hashable, value: object) -> float:
        seen, since = self._seen.get(key, (None, self._clock.now))
        if key not in self._seen or seen != value:
            since = self._clock.now
        self._seen[key] = (value, since)
        return self._clock.now - since

    def forget_all_but(self, keys: Collection[Hashable]) -> None:
        self._seen = {key: self._seen[key] for key in self._seen if key in keys}
