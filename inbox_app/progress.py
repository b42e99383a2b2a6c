"""Where a message is and what it waits for, in plain words."""

from __future__ import annotations

from datetime import datetime

from inbox_app import transports
from inbox_app.models import Message
from sessions_app.models import Lane, Turn


def next_attempt_at(message: Message) -> datetime | None:
    """When it may be tried next at the earliest; None unless it is pending."""
    if message.status != Message.Status.PENDING:
        return None
    backs_off = Lane.objects.filter(key=message.lane, failures__gt=0, lease_owner=None, due_at__isnull=False)
    lane_is_due_at = backs_off.values_list("due_at", flat=True).first()
    return max(message.available_at, lane_is_due_at) if lane_is_due_at else message.available_at


def waiting_for(message: Message, *, now: datetime) -> str | None:
    """None once it has settled."""
    if message.lane is None:
        return None
    if message.status == Message.Status.PROCESSING:
        if message.session_id is None:
            return "the peer's answer"
        return "the end of its turn" + (f", which began at {_clock(message.started_at)}" if message.started_at else "")
    return "; ".join(_obstacles(message, lane=message.lane, now=now)) or "the dispatcher"


def _obstacles(message: Message, *, lane: str, now: datetime) -> list[str]:
    ahead = Message.objects.unsettled().filter(lane=lane, pk__lt=message.pk).count()
    queue = [f"{ahead} message{'s' if ahead > 1 else ''} ahead"] if ahead else []
    remote = transports.remote_for(message.target)
    if remote is not None:
        return queue + remote.obstacles(message, lane=Lane.objects.get(key=lane), now=now)
    paused = ["lane paused by an operator"] if Lane.objects.paused().filter(key=lane).exists() else []
    return paused + queue + _of_the_session(message, now=now)


def _of_the_session(message: Message, *, now: datetime) -> list[str]:
    turn = Turn.objects.running().filter(session=message.session_id).first()
    words = [_in_a_turn(turn)] if turn else []
    return words + ([f"next try at {_clock(message.available_at)}"] if message.available_at > now else [])


def _in_a_turn(turn: Turn) -> str:
    begun = f"target is in a turn since {_clock(turn.started_at)}"
    return begun if turn.origin == Turn.Origin.MESSAGE else f"{begun}, started by {turn.origin}"


def _clock(moment: datetime) -> str:
    return f"{moment:%H:%M:%S} UTC"
