"""Lanes: the one lease of the system, and the only writer of lane columns.

To run anything for an address you hold its lane. A :class:`Hold` is the proof: whoever shows a key, an owner and an
epoch that are no longer the row's has lost the lane, even to itself, and changes nothing.

Functions without a transaction of their own say so; they are steps of a transition.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from django.conf import settings
from django.db import connection
from django.db.models import Exists, F, OuterRef, Q
from django.db.models.functions import Greatest
from django.utils.module_loading import import_string

from sessions_app.models import Holder, Lane
from sessions_app.querysets import REMOTE_PREFIX, LaneQuerySet
from suzent_site.errors import Conflict
from suzent_site.processes import boot_id, this_host, uptime
from suzent_site.transactions import durable, hint_on_commit, until_answered

T = TypeVar("T")

WANTED_FOR = timedelta(seconds=5)  # that a lane is kept free for who asked for it, should they die

class LeaseLost(Conflict):
    """The lane this turn held has gone to another holder; nothing was changed."""

    code = "lease_lost"


@dataclass(frozen=True)
class Hold:
    """The proof that one may run things for an address."""

    key: str
    owner: str
    epoch: int


def ensure(key: str) -> None:
    """Make the lane with its session or peer. A step of the caller's transaction."""
    Lane.objects.get_or_create(key=key)


def mark_due(key: str, *, now: datetime) -> bool:
    """Lock the lane and see that somebody looks. False: there is no such lane. A step of the caller's transaction.

    In plain SQL because every send does it under SQLite's one write lock: 0.02 ms instead of 0.33 ms, which the ORM
    needs to put the same statement together.
    """
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {Lane._meta.db_table} SET due_at = coalesce(due_at, %s) WHERE key = %s",
            [connection.ops.adapt_datetimefield_value(now), key],
        )
        return int(cursor.rowcount) == 1


def lock(keys: Iterable[str]) -> dict[str, Lane]:
    """Lock lanes in key order until the caller's transaction ends."""
    return {lane.key: lane for lane in Lane.objects.filter(key__in=set(keys)).locked()}


def is_held(hold: Hold, locked: dict[str, Lane]) -> bool:
    """Whether the locked lane is still held so."""
    lane = locked.get(hold.key)
    return lane is not None and (lane.lease_owner, lane.epoch) == (hold.owner, hold.epoch)


def prove(hold: Hold, locked: dict[str, Lane]) -> None:
    """Raises LeaseLost if the locked lane is no longer held so."""
    if not is_held(hold, locked):
        raise LeaseLost


def holds_still(hold: Hold) -> bool:
    """Whether the lane is still held so, as of now and without a lock: for reading tools."""
    return Lane.objects.filter(key=hold.key, lease_owner=hold.owner, epoch=hold.epoch).exists()


def claim(owner: str, *, now: datetime, limit: int, remote: int | None = None) -> list[Hold]:
    """Take up to ``limit`` due lanes, at most ``remote`` of them to other machines, the longest due first.

    A step of the caller's transaction.
    """
    due = _due_lanes(now, limit=limit, remote=limit if remote is None else remote)
    until = now + lease()
    Lane.objects.filter(key__in=[lane.key for lane in due]).update(
        lease_owner=owner, lease_until=until, due_at=until, epoch=F("epoch") + 1, wanted_until=None
    )
    return [Hold(lane.key, owner, lane.epoch + 1) for lane in due]


def _due_lanes(now: datetime, *, limit: int, remote: int) -> list[Lane]:
    """Those to other machines past their share are left out, and what is due behind them comes instead."""
    due = _takeable(now).order_by("due_at").select_for_update(skip_locked=True)
    found = list((due if remote > 0 else due.local())[:limit])
    surplus = [lane for lane in found if lane.key.startswith(REMOTE_PREFIX)][max(remote, 0) :]
    if not surplus:
        return found
    taken = [lane for lane in found if lane not in surplus]
    return taken + list(due.local().exclude(key__in=[lane.key for lane in taken])[: limit - len(taken)])


def any_due(*, now: datetime, remote: bool = True) -> bool:
    """Asked fifty times a second by an idle shift, so the question that nearly always says no comes first.

    Without ``remote``, lanes to other machines do not count.
    """
    if not Lane.objects.filter(due_at__lte=now).exists():
        return False
    return (_takeable(now) if remote else _takeable(now).local()).exists()


def _takeable(now: datetime) -> LaneQuerySet:
    return _not_held_by_the_living(Lane.objects.due(now))


def _not_held_by_the_living(found: LaneQuerySet) -> LaneQuerySet:
    """Those not held by a process of this machine that renewed within a lease by the machine's uptime.

    That clock does not step, so setting the wall clock forward steals no live lease.
    """
    living = Holder.objects.filter(
        owner=OuterRef("lease_owner"), host=this_host(), boot_id=boot_id(), renewed_uptime__gt=uptime() - lease().total_seconds()
    )
    return found.filter(Q(lease_owner=None) | ~Exists(living))


def want(key: str, *, now: datetime) -> None:
    """Ask for a lane for a direct turn: its holder starts no next message, and no shift takes it.

    It holds for WANTED_FOR, or until somebody takes the lane: whoever still waits asks again.
    """
    with durable():
        soon_over = Q(wanted_until=None) | Q(wanted_until__lte=now + WANTED_FOR / 2)
        Lane.objects.filter(soon_over, key=key).update(wanted_until=now + WANTED_FOR)


def want_no_more(key: str) -> None:
    """Who else waits for the lane asks again at its next look."""
    with durable():
        Lane.objects.filter(key=key).update(wanted_until=None)
        wake_on_commit()


def may_take(key: str, *, now: datetime) -> bool:
    """Whether a direct turn would find the lane free: asked first, since ``take`` needs a write lock."""
    return _free_for_direct(key, now=now).exists()


def take(key: str, owner: str, *, now: datetime) -> Hold | None:
    """Take a free lane for a direct turn, due or not. None: it is held or paused. A step of the caller's transaction."""
    lane = _free_for_direct(key, now=now).select_for_update().first()
    if lane is None:
        return None
    until = now + lease()
    Lane.objects.filter(key=key).update(lease_owner=owner, lease_until=until, due_at=until, epoch=F("epoch") + 1, wanted_until=None)
    return Hold(key, owner, lane.epoch + 1)


def _free_for_direct(key: str, *, now: datetime) -> LaneQuerySet:
    return _not_held_by_the_living(Lane.objects.unleased(now).filter(key=key, paused_at=None))


def renew(owner: str, *, now: datetime) -> set[str]:
    """Extend every lease of ``owner``; the keys of the lanes it holds."""
    until = now + lease()
    with durable():
        held = set(Lane.objects.held_by(owner).locked().values_list("key", flat=True))
        Lane.objects.held_by(owner).filter(key__in=held).update(lease_until=until, due_at=until)
    return held


def release(holds: Collection[Hold], *, due_at: datetime | None) -> None:
    """Let go of lanes. ``due_at``: when somebody should look next, None for not before new mail.

    A step: the caller's transaction has locked or claimed them.
    """
    if holds:
        owner = next(iter(holds)).owner
        keys = [hold.key for hold in holds]
        Lane.objects.held_by(owner).filter(key__in=keys).update(lease_owner=None, lease_until=None, due_at=due_at)


def seize(key: str, *, now: datetime) -> None:
    """End whatever holds or pauses the lane, fenced, and make it due: for archiving. A step, the lane locked."""
    Lane.objects.filter(key=key).update(
        epoch=F("epoch") + 1, lease_owner=None, lease_until=None, paused_at=None, wanted_until=None, due_at=now
    )


def look_now(keys: Collection[str], *, now: datetime) -> None:
    """Make free lanes due at once; a held one is its holder's business. A step, the lanes locked."""
    Lane.objects.filter(key__in=keys, lease_owner=None).update(due_at=now)


def look_by(key: str, *, at: datetime) -> None:
    """See that somebody looks at a free lane no later than ``at``; a held one is its holder's business. A step, the lane locked."""
    Lane.objects.filter(key=key, lease_owner=None).filter(Q(due_at=None) | Q(due_at__gt=at)).update(due_at=at)


def unseen(keys: Collection[str], *, now: datetime) -> list[str]:
    """The free ones among these that nobody would look at now."""
    return list(Lane.objects.filter(key__in=keys, lease_owner=None).filter(Q(due_at=None) | Q(due_at__gt=now)).values_list("key", flat=True))
def look_again(keys: Collection[str], *, now: datetime) -> None:
    """``look_now``, but a lane that backs off keeps its time. A step, the lanes locked."""
    Lane.objects.filter(key__in=keys, lease_owner=None, failures=0).update(due_at=now)


def back_off(hold: Hold, *, due_at: datetime | None, charged: bool) -> None:
    """Let go of a lane that got nowhere; nobody looks before ``due_at``. A step, the lane locked and held.

    ``charged``: one more failure in a row. In any case it counts as backing off until ``recover``.
    """
    failures = F("failures") + 1 if charged else Greatest(F("failures"), 1)
    Lane.objects.held_by(hold.owner).filter(key=hold.key).update(lease_owner=None, lease_until=None, due_at=due_at, failures=failures)


def recover(keys: Collection[str]) -> None:
    """It went well: the next failure is the first again. A step, the lanes locked."""
    Lane.objects.filter(key__in=keys, failures__gt=0).update(failures=0)


def pause(key: str, *, now: datetime) -> bool:
    """Start nothing more here; a running turn ends as it will. False: it was paused, or is not there."""
    with durable():
        return hold_up(key, now=now)


def resume(key: str, *, now: datetime) -> bool:
    """Go on where ``pause`` stopped. False: it was not paused."""
    with durable():
        return go_on(key, now=now)


def hold_up(key: str, *, now: datetime) -> bool:
    """``pause`` as a step of the caller's transaction."""
    return Lane.objects.filter(key=key, paused_at=None).update(paused_at=now) == 1


def go_on(key: str, *, now: datetime) -> bool:
    """``resume`` as a step of the caller's transaction."""
    resumed = Lane.objects.paused().filter(key=key).update(paused_at=None) == 1
    look_now([key], now=now)
    wake_on_commit()
    return resumed


def end_leases(owner: str, *, now: datetime, keys: Collection[str] | None = None) -> int:
    """Free the lanes of a process that is gone (or those of ``keys``); they are due at once. The number of them."""
    with durable():
        lanes = Lane.objects.held_by(owner)
        if keys is not None:
            lanes = lanes.filter(key__in=keys)
        held = list(lanes.locked().values_list("key", flat=True))
        return lanes.filter(key__in=held).update(lease_owner=None, lease_until=None, due_at=now)


def wake_on_commit() -> None:
    """Have the dispatcher woken once this transaction is committed; a broker's error never reaches the caller."""
    hint_on_commit(import_string(settings.WAKE))


def until_lease_ends(act: Callable[[], T]) -> T:
    """``act`` again while the database cannot be reached, at most as long as a lease: then another may have the lane."""
    return until_answered(act, give_up_at=time.monotonic() + lease().total_seconds())


def lease() -> timedelta:
    return timedelta(seconds=settings.SUZENT_LEASE_SECONDS)
