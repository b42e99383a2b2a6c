"""What goes through the door of transitions.py, from the draft on its way in to the notes of how a turn ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from inbox_app import provenance
from inbox_app.digest import digest_of
from inbox_app.judgement import Judgement
from inbox_app.models import Attempt, DedupeKey, Message
from sessions_app.cron.runs import CronWork
from sessions_app.lanes import Hold
from sessions_app.models import Session, Turn, lane_key_of
from sessions_app.runtimes.base import TurnInput
from sessions_app.turns import Commit, Mark


@dataclass(frozen=True)
class RemoteTarget:
    """An agent on another machine, as far as it concerns the engine: an address and whose it is."""

    agent_id: str
    project_id: str
    transport: Message.Transport = Message.Transport.SUZENT_PEER

    @property
    def lane_key(self) -> str:
        return lane_key_of(self.agent_id)


@dataclass(frozen=True)
class Draft:
    """A message that somebody wants to send. ``ours``: the id was made by us and may have a reserved prefix.

    ``hops``: how long its chain was when it came from another installation.
    """

    project_id: str
    target: Session | RemoteTarget
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
    hops: int = 0

    @property
    def transport(self) -> Message.Transport:
        return self.target.transport if isinstance(self.target, RemoteTarget) else Message.Transport.LOCAL

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

    @property
    def session(self) -> Session:
        if self.message.session is None:
            raise LookupError(f"message {self.message.pk} has no session")
        return self.message.session

    @property
    def name(self) -> str:
        """For the log."""
        return self.message.message_id

    @property
    def charged(self) -> int:
        """How many of its tries were charged."""
        return self.message.attempts

    @property
    def deferrals(self) -> int:
        return self.message.deferrals

    @property
    def losses(self) -> int:
        return self.message.losses

    def given(self) -> tuple[TurnInput, ...]:
        """What the runtime is asked, and what becomes the user entries."""
        return tuple(
            TurnInput(message.message_id, message.kind, message.content, attempt.number, provenance.header(message))
            for message, attempt in self.inputs
        )

    def marks(self) -> list[Mark]:
        return [Mark(message.message_id, message.digest) for message, _ in self.inputs]


@dataclass(frozen=True)
class Parcel:
    """A message that is to go to another machine now, under this hold. It has no turn here."""

    hold: Hold
    message: Message
    attempt: Attempt

    @property
    def inputs(self) -> tuple[tuple[Message, Attempt], ...]:
        return ((self.message, self.attempt),)


@dataclass(frozen=True)
class Judged:
    """A message that is not to run: a claim never settles, so this is settled in a transaction of its own."""

    hold: Hold
    message: Message
    judgement: Judgement


Doable = Work | CronWork  # what a turn is run for: mail, or a cron run, which is in no inbox
Job = Doable | Parcel
Next = Job | Judged


@dataclass(frozen=True)
class Acknowledgement:
    """A message whose turn is committed, and those that its turn took along. ``go_on``: its holder would run the next.

    No message: the turn was a cron run's, which its commit has settled; only the lane is to be left.
    ``answer``: what the other machine said, of one that went there.
    """

    hold: Hold
    message: Message | None
    outcome: Attempt.Outcome = Attempt.Outcome.DELIVERED
    go_on: bool = False
    answer: dict[str, Any] = field(default_factory=dict)
    followers: tuple[Message, ...] = ()

    @property
    def messages(self) -> tuple[Message, ...]:
        return tuple(message for message in (self.message, *self.followers) if message is not None)

    @property
    def message_pks(self) -> list[int]:
        return [message.pk for message in self.messages]


@dataclass(frozen=True)
class Setback:
    """Why a turn did not end in a commit, and what that costs.

    ``maybe_delivered``: another machine may have taken the message, and did not say so.
    """

    error: str
    retry_at: datetime
    outcome: Attempt.Outcome = Attempt.Outcome.RETRIED
    charged: bool = False
    deferred: bool = False
    timed_out: bool = False
    died_alone: bool = False
    maybe_delivered: bool = False


@dataclass(frozen=True)
class Ended:
    """How a try ended. ``commit``: what a turn did, still to be committed. ``acknowledgement``: it is committed.

    ``setback``: it came to nothing. ``refusal``: another machine refused the message for good. None of them: the lane
    was lost, and nothing is to be done.
    """

    commit: Commit | None = None
    acknowledgement: Acknowledgement | None = None
    setback: Setback | None = None
    refusal: Judgement | None = None


@dataclass(frozen=True)
class Swept:
    """How much the sweep found to do."""

    expired: int
    repaired: int
