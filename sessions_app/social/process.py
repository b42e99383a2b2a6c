"""All that ``manage.py social`` runs: a poller for each polled channel, the brain's hands, the senders."""

from __future__ import annotations

import os
import secrets
import threading

import structlog
from django.db import InterfaceError, OperationalError, connection

from sessions_app.direct import DirectTurns
from sessions_app.models import Holder, SocialChannel
from sessions_app.social.loops import Hands, Loop
from sessions_app.social.poller import Poller
from sessions_app.social.sender import send_next

SENDERS = 2
LONGEST_POLL = 40.0  # seconds
LAST_WORDS = 1.0  # seconds for turns that are still running when the grace period is over
SENDER_PAUSE = 0.5  # seconds between looks for replies

log = structlog.get_logger(__name__)


class SocialProcess:
    """A context manager. Call ``look_at_channels`` now and then, and ``close`` before the end."""

    def __init__(self) -> None:
        self._direct = DirectTurns(Holder.Kind.SOCIAL)
        self._closing = threading.Event()
        self._ending: list[Loop] = []  # whose last poll may still be open
        self._polled: dict[str, tuple[threading.Event, Loop, SocialChannel]] = {}

    def __enter__(self) -> SocialProcess:
        self._direct.__enter__()
        self._hands = Hands(self._direct)
        self._senders = [self._sender(number) for number in range(SENDERS)]
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close(patience=0)
        self._direct.close(patience=LAST_WORDS)
        self._direct.__exit__(None, None, None)
        self._hands.join()

    def look_at_channels(self) -> None:
        """Poll the channels that are there and on, as they are set now."""
        try:
            wanted = {channel.pk: channel for channel in SocialChannel.objects.filter(driver="telegram", active=True)}
        except (OperationalError, InterfaceError) as error:
            log.warning("social_cannot_reach_database", error=type(error).__name__)
            connection.close()
            return
        for name in list(self._polled):
            if name not in wanted or _is_set_otherwise(wanted[name], self._polled[name][2]):
                closing, loop, _ = self._polled.pop(name)
                closing.set()
                self._ending.append(loop)
        for name in wanted.keys() - self._polled.keys():
            self._polled[name] = self._begin_polling(wanted[name])

    def polled(self) -> list[str]:
        """The names of the channels that it polls."""
        return sorted(self._polled)

    def close(self, *, patience: float) -> None:
        """Poll no more, let what runs finish, stop sending."""
        for closing, _, _ in self._polled.values():
            closing.set()
        self._hands.close(patience=patience)
        self._closing.set()

    def join(self) -> None:
        """Wait for the threads, a poll in progress included."""
        for loop in (*self._senders, *self._ending, *(loop for _, loop, _ in self._polled.values())):
            loop.join(LONGEST_POLL)

    def _begin_polling(self, channel: SocialChannel) -> tuple[threading.Event, Loop, SocialChannel]:
        closing = threading.Event()
        poller = Poller(channel, self._hands.ingress, closing=closing)
        return closing, Loop(f"poll-{channel.pk}", poller.step, closing=closing, pause=0), channel

    def _sender(self, number: int) -> Loop:
        owner = f"social-{os.getpid()}-{secrets.token_hex(4)}-{number}"
        return Loop(f"send-{number}", lambda: send_next(owner), closing=self._closing, pause=SENDER_PAUSE)


def _is_set_otherwise(now: SocialChannel, then: SocialChannel) -> bool:
    return (now.url, now.secret_sealed, now.secret_variable) != (then.url, then.secret_sealed, then.secret_variable)
