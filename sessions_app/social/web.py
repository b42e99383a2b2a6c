"""The social brain of the web process: it works off what webhooks bring, and begins with the first of them."""

from __future__ import annotations

import threading

from django.conf import settings

from sessions_app import direct
from sessions_app.social.events import IncomingEvent
from sessions_app.social.ingress import Taken
from sessions_app.social.loops import Hands

LAST_WORDS = 1.0  # seconds for turns that are still running when the grace period is over

_opening = threading.Lock()
_hands: Hands | None = None


def take_in(event: IncomingEvent) -> bool:
    """False: the queue is full, or the server is about to end."""
    global _hands  # noqa: PLW0603  # one a process
    with _opening:
        if _hands is None:
            _hands = Hands(direct.of_web())
        hands = _hands
    return hands.ingress.put(Taken(event))


def close() -> None:
    """At the server's end: what waits in the queue has the grace period, what still runs then is given up."""
    global _hands
    with _opening:
        hands, _hands = _hands, None
    if hands is not None:
        hands.close(patience=settings.SUZENT_SHUTDOWN_GRACE)
        direct.close_web(patience=LAST_WORDS)
        hands.join()
