"""Where a message is and what it waits for, in plain words."""

from __future__ import annotations

from datetime import datetime

from inbox_app.models import Message
from sessions_app.models import Lane, Turn


def next_attempt_at(message: Message) -> datetime | None:
    """When it may be tried next at the earliest; None unless it is pending."""
    return message.available_at if message.status == Message.Status.PENDING else None


def waiting_for(message: Message, *, now: datetime) -> str | None:
    """None once it has settled."""
    if message.lane is None:
        return None
    if message.status == Message.Status.PROCESSING:
        return "the end of its turn" + (f", which began at {_clock(message.started_at)}" if message.started_at else "")
    return "; ".join(_obstacles(message, lane=message.lane, now=now)) or "the dispatcher"


def _obstacles(message: Message, *, lane: str, now: datetime) -> list[str]:
    paused = Lane.objects.paused().filter(key=lane).exists()
    ahead = Message.objects.unsettled().filter(lane=lane, pk__lt=message.pk).count()
    turn = Turn.objects.running().filter(session=message.session_id).first()
    words = [
        "lane paused by an operator" if paused else "",
        f"{ahead} message{'s' if ahead > 1 else ''} ahead" if ahead else "",
        _in_a_turn(turn) if turn else "",
        f"next try at {_clock(message.available_at)}" if message.available_at > now else "",
    ]
    return [word for word in words if word]


def _in_a_turn(turn: Turn) -> str:
    begun = f"target is in a turn since {_clock(turn.started_at)}"
    return begun if turn.origin == Turn.Origin.MESSAGE else f"{begun}, started by {turn.origin}"


def _clock(moment: datetime) -> str:
    return f"{moment:%H:%M:%S} UTC"
