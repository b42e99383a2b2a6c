"""Waking the dispatcher. A queued task is a hint: losing it loses nothing, and an error of the broker reaches nobody."""

from __future__ import annotations

import threading
import time
from datetime import datetime, timedelta

from django.db.models import Q, QuerySet
from django_q.tasks import async_task

from inbox_app.models import Wake
from sessions_app.clock import database_now
from sessions_app.holder import LIVE_FOR
from sessions_app.models import Holder
from suzent_site.broker import quick_broker
from suzent_site.transactions import durable

STALE_AFTER = timedelta(seconds=2)  # a note this old has outlived its task

bell = threading.Event()  # rung at every wake of this process: a shift running here looks at once

LINGER = 2.0  # seconds a shift stays after its last work: a message sent then starts at once

DISPATCH = "dispatch"
ANSWER = "answer"


def wake() -> bool:
    """Queue one ``dispatch``, unless a live shift has room or one is queued. Whether it did.

    What a look finds holds for a while: a shift with room looks again after the commit that was followed by this look,
    finds that message, and then stays for LINGER seconds more. One that becomes full wakes another itself.
    """
    bell.set()
    if time.monotonic() < _Staffed.until:
        return False
    now = database_now()
    if living_shifts(now=now).filter(free__gt=0).exists():
        _Staffed.until = time.monotonic() + LINGER / 2
        return False
    return enqueue(DISPATCH, now=now)


class _Staffed:
    """Until when this process need not look again (a reading of the monotonic clock)."""

    until = 0.0


def enqueue(name: str, *, now: datetime) -> bool:
    """Queue the task ``inbox_app.tasks.<name>`` unless it is queued already. Raises what the broker raises."""
    if Wake.objects.filter(name=name, queued_at__range=(now - STALE_AFTER, now + STALE_AFTER)).exists():
        return False
    with durable():
        Wake.objects.get_or_create(name=name)
        stale = Q(queued_at=None) | Q(queued_at__lt=now - STALE_AFTER) | Q(queued_at__gt=now + STALE_AFTER)
        if not Wake.objects.filter(stale, name=name).update(queued_at=now):
            return False
    async_task(f"inbox_app.tasks.{name}", broker=quick_broker())
    return True


def taken(name: str) -> None:
    """The queued task has begun: the next wake may queue another."""
    with durable():
        Wake.objects.filter(name=name).update(queued_at=None)


def living_shifts(*, now: datetime) -> QuerySet[Holder]:
    """Shifts whose claim loop has passed lately. A beat from the future was made before the clock was set back."""
    lately = timedelta(seconds=LIVE_FOR)
    return Holder.objects.filter(kind=Holder.Kind.SHIFT, beat_at__range=(now - lately, now + lately))
