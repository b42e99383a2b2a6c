"""Turns: the only writer of a Turn's state, of transcript entries and of delivery markers.

A turn is started in the transaction that takes the lane, runs with no transaction open, and is committed in one that
begins by locking the lane and proving the lease.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import Case, F, Value, When

from sessions_app import lanes
from sessions_app.lanes import Hold
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
class Commit:
    """What a turn did. ``also`` is to happen in the same transaction, under ``also_lanes``, if the turn commits now.

    ``failed``: it came to nothing, and that is kept with its entries and marks.
    """

    turn: Turn
    hold: Hold
    entries: Sequence[Entry]
    marks: Sequence[Mark]
    usage: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    failed: bool = False
    also: Callable[[], None] | None = None
    also_lanes: Collection[str] = ()


@dataclass(frozen=True)
class Beginning:
    """A turn to be started under a hold. ``hops``: as in the Turn."""

    hold: Hold
    session_id: str
    message_ids: list[str]
    origin: Turn.Origin = Turn.Origin.MESSAGE
    hops: int = 0


def start(beginnings: Iterable[Beginning], *, now: datetime) -> list[Turn]:
    """Begin turns, one a session. A step of the transaction that takes the lanes."""
    return Turn.objects.bulk_create([
        Turn(session_id=b.session_id, origin=b.origin, message_ids=b.message_ids, hops=b.hops, epoch=b.hold.epoch, started_at=now)
        for b in beginnings
    ])


def commit(commits: Sequence[Commit], *, now: datetime) -> dict[int, Turn.State]:
    """Make what these turns did true, all in one transaction: turn id -> ``committed``, or ``stopped`` where asked for
    (``failed``, where the commit says so).

    One transaction for many turns costs little more than for one. A turn that is missing from the answer had lost its
    lane, and nothing of it was written. Committing again under the same epoch changes nothing and answers the same.
    """
    with durable():
        locked = lanes.lock({key for item in commits for key in (item.hold.key, *item.also_lanes)})
        mine = [item for item in commits if lanes.is_held(item.hold, locked)]
        running = set(Turn.objects.running().filter(pk__in=[item.turn.pk for item in mine]).values_list("pk", flat=True))
        fresh = [item for item in mine if item.turn.pk in running]
        _finish(fresh, now=now)
        _leave_marks(fresh, _append(fresh, now=now), now=now)
        for item in fresh:
            if item.also is not None:
                item.also()
        states = _states(mine)
        crash_point("turn.before_commit")
    crash_point("turn.after_commit")
    return states


def fail(turn_id: int, *, error: str, now: datetime) -> None:
    """End a running turn that has nothing to commit: ``failed``, or ``stopped`` where a stop was asked for. A step."""
    _running(turn_id).update(state=_stopped_or(Turn.State.FAILED), finished_at=now, error=storable(error))


def fence_off(session_id: str, *, error: str, now: datetime) -> None:
    """End the running turn of a session whose lane is being taken from it. A step, the lane locked."""
    Turn.objects.running().filter(session=session_id).update(state=Turn.State.FAILED, finished_at=now, error=error)


def was_asked_to_stop(turn_id: int) -> bool:
    return Turn.objects.stop_requested().filter(pk=turn_id).exists()


def close_lost(session_ids: Collection[str], *, now: datetime) -> None:
    """End the turns that a former holder left running, as ``fail`` does. A step of the claim's transaction."""
    Turn.objects.running().filter(session__in=session_ids).update(
        state=_stopped_or(Turn.State.FAILED), finished_at=now, error="the process that ran it is gone"
    )


def request_stop(session_ids: Collection[str], *, now: datetime) -> int:
    """Ask the running turns of these sessions to stop; how many run (asked before or now). A step."""
    running = Turn.objects.running().filter(session__in=session_ids)
    running.filter(stop_requested_at=None).update(stop_requested_at=now)
    return running.count()


def marked(
    keys: Collection[tuple[str, str]], *, source: DeliveryMarker.Source = DeliveryMarker.Source.MESSAGE
) -> set[tuple[str, str]]:
    """Which of these (session id, message id or event key) have had their committed turn."""
    found = DeliveryMarker.objects.filter(
        session__in={session for session, _ in keys}, source=source, key__in={key for _, key in keys}
    ).values_list("session_id", "key")
    return set(found) & set(keys)


def forget(turn_ids: Collection[int], *, finished_before: datetime) -> int:
    """Delete turns that ended so long ago; how many. What they wrote to the transcript stays. A step."""
    _, rows = Turn.objects.finished_before(finished_before).filter(pk__in=turn_ids).delete()
    return rows.get(Turn._meta.label, 0)


def forget_marks(marker_ids: Collection[int]) -> int:
    """Delete markers; how many. A step of whoever knows that no message of theirs can come again."""
    return DeliveryMarker.objects.filter(pk__in=marker_ids).delete()[0]


def inherit(session: Session, entries: Sequence[Entry], *, now: datetime) -> None:
    """What a new session begins with. A step of the transaction that makes it."""
    Session.objects.filter(pk=session.pk).update(last_seq=len(entries))
    TranscriptEntry.objects.bulk_create([
        TranscriptEntry(session=session, seq=seq, role=entry.role, text=entry.text, parts=entry.parts, created_at=now)
        for seq, entry in enumerate(entries, 1)
    ])  # fmt: skip


def history(session_id: str, limit: int) -> list[TranscriptEntry]:
    """The newest ``limit`` visible entries in transcript order."""
    newest = TranscriptEntry.objects.filter(session=session_id, visible=True).order_by("-seq")[:limit]
    return list(reversed(newest))


def _finish(commits: Sequence[Commit], *, now: datetime) -> None:
    state = _stopped_or(Turn.State.COMMITTED)
    plain = [item.turn.pk for item in commits if not (item.usage or item.error or item.failed)]
    Turn.objects.running().filter(pk__in=plain).update(state=state, finished_at=now)
    for item in commits:
        if item.turn.pk not in plain:
            state = _stopped_or(Turn.State.FAILED if item.failed else Turn.State.COMMITTED)
            _running(item.turn.pk).update(state=state, finished_at=now, usage=item.usage, error=storable(item.error))


def _append(commits: Sequence[Commit], *, now: datetime) -> dict[str, int]:
    """Append to the transcripts; session id -> position of its last entry. The lanes are locked: no gaps."""
    for count in {len(item.entries) for item in commits}:
        grown = [item.turn.session_id for item in commits if len(item.entries) == count]
        Session.objects.filter(pk__in=grown).update(last_seq=F("last_seq") + count, updated_at=now)
    last = dict(Session.objects.filter(pk__in=[item.turn.session_id for item in commits]).values_list("pk", "last_seq"))
    TranscriptEntry.objects.bulk_create([
        TranscriptEntry(
            session_id=item.turn.session_id, seq=seq, role=entry.role, text=storable(entry.text), parts=entry.parts,
            visible=entry.visible, turn=item.turn, message_id=entry.message_id, created_at=now,
        )
        for item in commits
        for seq, entry in enumerate(item.entries, last[item.turn.session_id] - len(item.entries) + 1)
    ])  # fmt: skip
    return last


def _leave_marks(commits: Sequence[Commit], last: dict[str, int], *, now: datetime) -> None:
    DeliveryMarker.objects.bulk_create([
        DeliveryMarker(
            session_id=item.turn.session_id, source=mark.source, key=mark.key, digest=mark.digest,
            seq=last[item.turn.session_id], created_at=now,
        )
        for item in commits
        for mark in item.marks
    ])  # fmt: skip


def _states(commits: Sequence[Commit]) -> dict[int, Turn.State]:
    """How they stand now, if they ended as their commit says under the epoch of their hold."""
    by_turn = {item.turn.pk: item for item in commits}
    ended = Turn.objects.filter(pk__in=by_turn).exclude(state=Turn.State.RUNNING).values_list("pk", "state", "epoch")
    return {
        pk: Turn.State(state) for pk, state, epoch in ended
        if by_turn[pk].hold.epoch == epoch and (state != Turn.State.FAILED or by_turn[pk].failed)
    }  # fmt: skip


def _stopped_or(state: Turn.State) -> Case:
    """The state of a turn that ends: ``stopped`` where a stop was asked for, however it ends."""
    return Case(When(stop_requested_at__isnull=False, then=Value(Turn.State.STOPPED)), default=Value(state))


def _running(turn_id: int) -> TurnQuerySet:
    return Turn.objects.running().filter(pk=turn_id)
