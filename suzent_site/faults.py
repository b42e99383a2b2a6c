"""Crash points: named places at which a test or a drill may kill or delay the process.

``crash_point("turn.after_commit")`` does nothing unless ``SUZENT_FAULTS`` names it. The setting is a list with
commas; each item is ``point:action`` with more actions behind further colons:

* ``exit``: ``os._exit(9)`` of whichever process gets there, as abrupt as a kill -9;
* ``sleep=S``: wait S seconds first;
* ``once``: only the first time, once per data directory, also across restarts.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

POINTS = frozenset({
    "accept.before_commit", "claim.after_commit", "turn.before_commit", "turn.after_commit",
    "ack.before_commit", "ack.after_commit", "release.before_commit", "fail.before_commit",
    "purge.before_commit", "purge.after_batch", "cron.after_claim", "peer.before_send", "peer.after_send", "spawn.after_commit",
    "peer.after_receive_commit", "social.after_send",
})
_ACTION = re.compile(r"exit|once|sleep=[0-9]+(\.[0-9]+)?", re.ASCII)


@dataclass(frozen=True)
class Fault:
    exit: bool = False
    sleep: float = 0.0
    once: bool = False


def crash_point(point: str) -> None:
    """Die or wait here if ``SUZENT_FAULTS`` says so."""
    if settings.SUZENT_FAULTS:
        _strike(point, _parsed(settings.SUZENT_FAULTS).get(point))


def _strike(point: str, fault: Fault | None) -> None:
    if fault is None or (fault.once and not _first_time(point)):
        return
    if fault.sleep:
        time.sleep(fault.sleep)
    if fault.exit:
        os._exit(9)


def parse(text: str) -> dict[str, Fault]:
    """Read ``SUZENT_FAULTS``. Raises ImproperlyConfigured for an unknown point or action."""
    return dict(_parse_item(item.strip()) for item in text.split(",") if item.strip())


_parsed = cache(parse)


def _parse_item(item: str) -> tuple[str, Fault]:
    point, *actions = item.split(":")
    if point not in POINTS:
        raise ImproperlyConfigured(f"SUZENT_FAULTS: there is no crash point {point!r}; there are {', '.join(sorted(POINTS))}")
    values: dict[str, bool | float] = {}
    for action in actions:
        name, _, value = action.partition("=")
        if not _ACTION.fullmatch(action):
            raise ImproperlyConfigured(f"SUZENT_FAULTS: {action!r} is not exit, sleep=SECONDS or once")
        values[name] = float(value) if name == "sleep" else True
    return point, Fault(**values)  # type: ignore[arg-type]  # the three names were checked above


def _first_time(point: str) -> bool:
    mark = Path(settings.SUZENT_DATA_DIR) / f"fault-{point}.struck"
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
