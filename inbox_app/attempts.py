"""Every try of a message: the only writer of Attempt rows. All functions are steps of a transition."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django.db.models import Max, Q

from inbox_app.models import Attempt, Message
from sessions_app.lanes import Hold
from sessions_app.models import Turn
from sessions_app.text import storable


def begin(begun: Sequence[tuple[Hold, tuple[Message, ...], Turn | None]], *, now: datetime) -> dict[int, Attempt]:
    """The new attempt of each message, by the message's key."""
    numbers = _next_numbers([message for _, messages, _ in begun for message in messages if message.started_at is not None])
    made = Attempt.objects.bulk_create([
        Attempt(
            message=message, number=numbers.get(message.pk, 1), owner=hold.owner, epoch=hold.epoch, turn=turn, started_at=now
        )
        for hold, messages, turn in begun
        for message in messages
    ])  # fmt: skip
    return {attempt.message_id: attempt for attempt in made}


def _next_numbers(messages: Sequence[Message]) -> dict[int, int]:
    if not messages:
        return {}
    last = Attempt.objects.filter(message__in=messages).values_list("message_id").annotate(Max("number"))
    return {message_id: number + 1 for message_id, number in last}


def close(message_ids: Sequence[int], *, outcome: Attempt.Outcome, now: datetime, error: str = "") -> None:
    """End the open tries of these messages."""
    open_ones = Attempt.objects.filter(message__in=message_ids, outcome=None)
    open_ones.update(outcome=outcome, finished_at=now, error=storable(error))


def ended_as_stopped(head: Message) -> bool:
    """Whether its turn ended as stopped: lost on the way, or committed and not acknowledged.

    Or somebody has found that already, and died before it could acknowledge.
    """
    found = Q(outcome=None, turn__state=Turn.State.STOPPED) | Q(outcome=Attempt.Outcome.STOPPED)
    return Attempt.objects.filter(found, message=head).exists()


def how_its_turn_ended(head: Message) -> str:
    """What the turn of its open try says of its end."""
    told = Attempt.objects.filter(message=head, outcome=None).values_list("turn__error", flat=True).first()
    return told or "the process that ran it is gone"
