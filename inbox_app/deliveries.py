"""What goes through the door of transitions.py, from the draft on its way in to the notes of how a turn ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from inbox_app.digest import digest_of
from inbox_app.judgement import Judgement
from inbox_app.models import Attempt, DedupeKey, Message
from sessions_app.lanes import Hold
from sessions_app.models import Session, Turn


@dataclass(frozen=True)
class Draft:
    """A message that somebody wants to send. ``ours``: the id was made by us and may have a reserved prefix."""

    project_id: str
    target: Session
    content: str
    kind: Message.Kind
    message_id: str = ""
    sender_id: str | None = None
    sender_label: str = ""
    payload: dict[str, Any] = field(default_factory=dict)
    in_reply_to: str = ""
    valid_for: timedelta | None = None
    hold: Hold | None = None
    ours: bool = False

    @property
    def digest(self) -> str:
        return digest_of(
            sender=self.sender_id, target=self.target.agent_id, kind=self.kind, content=self.content, payload=self.payload
        )


@dataclass(frozen=True)
class Accepted:
    """``created`` is False where this very message had been sent before; if that was purged, its key answers for it."""

    message: Message | DedupeKey
    created: bool


@dataclass(frozen=True)
class Work:
    """A message whose turn is to run now, under this hold.

    ``followers``: those behind it that the same turn takes along, where the session asks for it (``config.batch``).
    """

    hold: Hold
    message: Message
    attempt: Attempt
    turn: Turn
    followers: tuple[tuple[Message, Attempt], ...] = ()

    @property
    def inputs(self) -> tuple[tuple[Message, Attempt], ...]:
        """Every message of the turn with its attempt, in order."""
        return ((self.message, self.attempt), *self.followers)

    @property
    def alone(self) -> bool:
        """A suspect: some process died or hung with it before, so it runs in a process of its own."""
        return self.message.losses > 0


@dataclass(frozen=True)
class Judged:
    """A message that is not to run: a claim never settles, so this is settled in a transaction of its own."""

    hold: Hold
    message: Message
    judgement: Judgement


Next = Work | Judged


@dataclass(frozen=True)
class Acknowledgement:
    """A message whose turn is committed, and those that its turn took along. ``go_on``: its holder would run the next."""

    hold: Hold
    message: Message
    outcome: Attempt.Outcome = Attempt.Outcome.DELIVERED
    go_on: bool = False
    followers: tuple[Message, ...] = ()

    @property
    def message_pks(self) -> list[int]:
        return [message.pk for message in (self.message, *self.followers)]


@dataclass(frozen=True)
class Setback:
    """Why a turn did not end in a commit, and what that costs."""

    error: str
    retry_at: datetime
    outcome: Attempt.Outcome = Attempt.Outcome.RETRIED
    charged: bool = False
    deferred: bool = False
    timed_out: bool = False
    died_alone: bool = False


@dataclass(frozen=True)
class Swept:
    """How much the sweep found to do."""

    expired: int
    repaired: int
