"""Polling one Telegram channel. The offset moves past an update only when its event is done with, so a crash loses none.

While an event is at work, the ones behind it are asked for and handed on all the same. One that breaks us again and
again is given up and counted as refused: Telegram hands out no more than 100 behind it.
"""

from __future__ import annotations

import threading
from collections import Counter
from enum import Enum
from functools import partial
from typing import Any

import structlog

from sessions_app.clock import database_now
from sessions_app.models import SocialChannel
from sessions_app.social import refusals
from sessions_app.social.channels import note_trouble
from sessions_app.social.drivers import telegram
from sessions_app.social.ingress import Ingress, Taken
from suzent_site.errors import SuzentError

PAUSE_AFTER_TROUBLE = 5.0  # seconds
BREAKS = 5  # times that an update may break us
LOOK_WHILE_BUSY = 0.5  # seconds between two polls while events of this channel are at work

log = structlog.get_logger(__name__)


class Stage(Enum):
    AT_WORK = "at work"
    AGAIN = "to be handed on again"
    DONE = "done"


class Poller:
    def __init__(self, channel: SocialChannel, ingress: Ingress, *, closing: threading.Event) -> None:
        self.channel = channel
        self._ingress = ingress
        self._closing = closing
        self._lock = threading.Lock()
        self._known: dict[int, Stage] = {}  # by update id; those before the offset are forgotten
        self._broke: Counter[int] = Counter()
        self._offset = 0

    def step(self) -> bool:
        """One getUpdates, and every new update into the queue. False: something is wrong, or nothing can be done just now."""
        offset, busy = self._confirmed()
        try:
            found = telegram.updates(self.channel, offset=offset, wait=0 if busy else telegram.POLL_FOR)
        except SuzentError as error:
            log.warning("telegram_trouble", channel=self.channel.pk, error=error.detail)
            note_trouble(self.channel, error.detail)
            self._closing.wait(float(error.extra.get("retry_after", PAUSE_AFTER_TROUBLE)))
            return False
        note_trouble(self.channel, "")
        for update in found:
            self._hand_on(update)
        if busy:
            self._closing.wait(LOOK_WHILE_BUSY)
        return True

    def _confirmed(self) -> tuple[int, bool]:
        """From where on to ask, since everything before is done with; and whether something is not."""
        with self._lock:
            while self._known:
                lowest = min(self._known)
                if self._known[lowest] != Stage.DONE:
                    self._offset = lowest
                    break
                del self._known[lowest]
                del self._broke[lowest]  # a Counter minds none that is not there
                self._offset = lowest + 1
            return self._offset, bool(self._known)

    def _hand_on(self, update: dict[str, Any]) -> None:
        number: int = update["update_id"]
        event = telegram.event_of(self.channel, update, now=database_now())
        with self._lock:
            if number < self._offset or self._known.get(number, Stage.AGAIN) != Stage.AGAIN:
                return
            self._known[number] = Stage.DONE if event is None else Stage.AT_WORK
        if event is not None and not self._ingress.put(Taken(event, over=partial(self._over, number))):
            self._over(number, finished=False)

    def _over(self, number: int, *, finished: bool, broke: bool = False) -> None:
        with self._lock:
            self._broke[number] += broke
            is_given_up = not finished and self._broke[number] >= BREAKS
            self._known[number] = Stage.DONE if finished or is_given_up else Stage.AGAIN
        if is_given_up:
            refusals.count(self.channel.pk, "broke", now=database_now())
