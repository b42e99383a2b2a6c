"""How fast one sender may send: a token bucket for each, in this process.

The limit is against an agent that runs away, not for billing, so each process counts for itself and nothing is stored:
with two web processes a sender may reach twice the rate.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from django.conf import settings

from inbox_app.errors import RateLimited

BURST_SECONDS = 10 / 3  # of the rate that a rested sender may use at once: 2,000 messages at 600/s
SENDERS_REMEMBERED = 10_000  # the one that was silent longest is forgotten first


class Buckets:
    """``take`` a place for one message. ``clock``: seconds that only grow."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._levels: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()  # sender -> (places, when)

    def take(self, project: str, sender: str) -> None:
        """Raises RateLimited, saying when to come back."""
        rate = settings.SUZENT_SENDER_RATE
        with self._lock:
            now = self._clock()
            places, at = self._levels.get((project, sender), (rate * BURST_SECONDS, now))
            places = min(places + (now - at) * rate, rate * BURST_SECONDS)
            if places < 1:
                raise RateLimited(retry_after=(1 - places) / rate, limit=f"{rate:g}/s")
            self._levels[project, sender] = (places - 1, now)
            self._levels.move_to_end((project, sender))
            if len(self._levels) > SENDERS_REMEMBERED:
                self._levels.popitem(last=False)


senders = Buckets()
