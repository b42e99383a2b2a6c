"""Turns: the only writer of a Turn's state, of transcript entries and of delivery markers.

A turn is started in the transaction that takes the lane, runs with no transaction open, and is committed in one that
begins by locking the lane and proving the lease.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Case, F, Q, Value, When

from sessions_app import lanes
from sessions_app.lanes import Hold, LeaseLost
from sessions_app.models import DeliveryMarker, Session, TranscriptEntry, Turn
from sessions_app.querysets import TurnQuerySet
from sessions_app.text import storable
from suzent_site.faults import crash_point
from suzent_site.transactions import durable


@dataclass(frozen=True)
class Entry:
    """A line to be appended to a transcript."""

    role: TranscriptEntry.Role
    text: str
    parts: list[Any] = field(default_factory=list)
    message_id: str = ""
    visible: bool = True


@dataclass(frozen=True)
class Mark:
    """The marker to be left with the turn: for a message its id, for an event its platform and id."""

    key: str
    digest: str
    source: DeliveryMarker.Source = DeliveryMarker.Source.MESSAGE


@dataclass(frozen=True)
class Beginning:
    """A turn to be started under a hold."""

    hold: Hold
    session_id: str
    message_ids: list[str]
    origin: Turn.Origin = Turn.Origin.MESSAGE


def start(beginnings: Iterable[Beginning], *, now: datetime) -> list[Turn]:
    """Begin turns, one a session. A step of the transaction that takes the lanes."""
    return Turn.objects.bulk_create([
        Turn(session_id=b.session_id, origin=b.origin, message_ids=b.message_ids, epoch=b.hold.epoch, started_at=now)
        for b in beginnings
    ])


def commit(
    turn: Turn,
    hold: Hold,
    *,
    entries: Sequence[Entry],
    marks: Sequence[Mark],
    now: datetime,
    usage: dict[str, Any] | None = None,
    error: str = "",
    also: Callable[[], None] | None = None,
    also_lanes: Collection[str] = (),
) -> Turn.State:
    """Make what the turn did true, in one transaction; ``committed``, or ``stopped`` where a stop was asked for.

    ``also`` is what the caller passes in to happen in the same transaction, under ``also_lanes``. Committing again
    under the same epoch changes nothing and answers as the first time. Raises LeaseLost: nothing was written.
    """
    with durable():
        lanes.prove(hold, lanes.lock({hold.key, *also_lanes}))
        if not _finish(turn, hold, error=error, usage=usage or {}, now=now):
            return _committed_before(turn, hold)
        last = _append(turn, entries, now=now)
        _leave(marks, turn=turn, seq=last, now=now)
        if also is not None:
            also()
        crash_point("turn.before_commit")
        state = Turn.State(Turn.objects.values_list("state", flat=True).get(pk=turn.pk))
    crash_point("turn.after_commit")
    return state


def fail(turn_id: int, *, error: str, now: datetime) -> None:
    """End a running turn that has nothing to commit: ``failed``, or ``stopped`` where a stop was asked for. A step."""
    stopped = When(stop_requested_at__isnull=False, then=Value(Turn.State.STOPPED))
    _running(turn_id).update(state=Case(stopped, default=Value(Turn.State.FAILED)), finished_at=now, error=storable(error))


def fence_off(session_id: str, *, error: str, now: datetime) -> None:
    """End the running turn of a session whose lane is being taken from it. A step, the lane locked."""
    Turn.objects.running().filter(session=session_id).update(state=Turn.State.FAILED, finished_at=now, error=error)


def was_asked_to_stop(turn_id: int) -> bool:
    return Turn.objects.stop_requested().filter(pk=turn_id).exists()


def close_lost(session_ids: Collection[str], *, now: datetime) -> dict[str, bool]:
    """End the turns that a former holder left running: session id -> whether it had been asked to stop.

    A step of the claim's transaction.
    """
    left = list(Turn.objects.running().filter(session__in=session_ids))
    for turn in left:
        stopped = turn.stop_requested_at is not None
        _running(turn.pk).update(
            state=Turn.State.STOPPED if stopped else Turn.State.FAILED, finished_at=now, error="the process that ran it is gone"
        )
    return {turn.session_id: turn.stop_requested_at is not None for turn in left}


def request_stop(session_ids: Collection[str], *, now: datetime) -> int:
    """Ask the running turns of these sessions to stop; how many run (asked before or now). A step."""
    running = Turn.objects.running().filter(session__in=session_ids)
    running.filter(stop_requested_at=None).update(stop_requested_at=now)
    return running.count()


def marked(keys: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """Which of these (session id, message id) have had their committed turn."""
    found = DeliveryMarker.objects.filter(
        session__in={session for session, _ in keys}, source=DeliveryMarker.Source.MESSAGE, key__in={key for _, key in keys}
    ).values_list("session_id", "key")
    return set(found) & set(keys)


def ended_stopped(session_id: str, message_id: str) -> bool:
    """Whether the newest turn of the session was stopped while it handled this message."""
    newest = Turn.objects.filter(session=session_id).order_by("session", "-id").first()
    return newest is not None and newest.state == Turn.State.STOPPED and message_id in newest.message_ids


def history(session_id: str, limit: int) -> list[TranscriptEntry]:
    """The newest ``limit`` visible entries in transcript order."""
    newest = TranscriptEntry.objects.filter(session=session_id, visible=True).order_by("-seq")[:limit]
    return list(reversed(newest))


def _finish(turn: Turn, hold: Hold, *, error: str, usage: dict[str, Any], now: datetime) -> bool:
    stopped = When(stop_requested_at__isnull=False, then=Value(Turn.State.STOPPED))
    return (
        _running(turn.pk)
        .filter(epoch=hold.epoch)
        .update(state=Case(stopped, default=Value(Turn.State.COMMITTED)), finished_at=now, usage=usage, error=storable(error))
        == 1
    )


def _committed_before(turn: Turn, hold: Hold) -> Turn.State:
    done = Turn.objects.filter(Q(state=Turn.State.COMMITTED) | Q(state=Turn.State.STOPPED), pk=turn.pk, epoch=hold.epoch)
    state = done.values_list("state", flat=True).first()
    if state is None:
        raise LeaseLost
    return Turn.State(state)


def _append(turn: Turn, entries: Sequence[Entry], *, now: datetime) -> int:
    """Append to the transcript; the position of the last entry. The lane is locked, so positions have no gaps."""
    Session.objects.filter(pk=turn.session_id).update(last_seq=F("last_seq") + len(entries), updated_at=now)
    last: int = Session.objects.values_list("last_seq", flat=True).get(pk=turn.session_id)
    first = last - len(entries) + 1
    TranscriptEntry.objects.bulk_create([
        TranscriptEntry(
            session_id=turn.session_id, seq=seq, role=entry.role, text=storable(entry.text), parts=entry.parts,
            visible=entry.visible, turn=turn, message_id=entry.message_id, created_at=now,
        )
        for seq, entry in enumerate(entries, first)
    ])  # fmt: skip
    return last


def _leave(marks: Sequence[Mark], *, turn: Turn, seq: int, now: datetime) -> None:
    DeliveryMarker.objects.bulk_create([
        DeliveryMarker(session_id=turn.session_id, source=m.source, key=m.key, digest=m.digest, seq=seq, created_at=now)
        for m in marks
    ])


def _running(turn_id: int) -> TurnQuerySet:
    return Turn.objects.running().filter(pk=turn_id)
