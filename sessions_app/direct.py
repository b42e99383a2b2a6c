"""Direct turns: what somebody wants of an agent now, run by the process that was asked (web or social), past the inbox.

A direct turn holds the session's lane like any other. Where the lane is taken, whoever wants it says so
(``lanes.want``), is next, and leaves it due at once, so that the mail behind it goes on. What raises, hangs or is
stopped ends as it would in a shift, with one difference: nothing is tried again; the caller is told and decides.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TypeVar

import structlog
from django.conf import settings
from django.db import DataError, IntegrityError, connection

from sessions_app import lanes, turns
from sessions_app.actions import SessionGone
from sessions_app.clock import database_now
from sessions_app.holder import LaneHolder
from sessions_app.lanes import Hold
from sessions_app.models import DeliveryMarker, Holder, Session, TranscriptEntry, Turn
from sessions_app.runtimes.base import TurnInput, TurnResult, Unavailable
from sessions_app.text import cut, storable_json
from sessions_app.thinking import Assignment, Emit, reply_of, think, unwatched
from sessions_app.turns import Beginning, Commit, Entry, Mark
from suzent_site.errors import Conflict, first_line
from suzent_site.transactions import durable

FIRST_LOOK, LONGEST_LOOK = 0.02, 0.5  # seconds between looks for a lane that is held
RETRY_AFTER = 2  # seconds that a caller is told to wait for a lane
ERROR_LIMIT = 2_000  # characters of an error that are kept
NO_ANSWER = "its thread ended without an answer"
DRAINED = "the process that ran it was asked to stop"

T = TypeVar("T")
log = structlog.get_logger(__name__)


class LaneBusy(Conflict):
    """Something else runs for this session, or it is paused. Ask again in a moment."""

    code = "busy"


class AlreadyDone(Conflict):
    """This very event has had its turn."""

    code = "already_done"


@dataclass(frozen=True)
class Thought:
    """What came of a runtime's work: a result and its entry, or an error. ``retry_after``: seconds, of one that is unavailable."""

    result: TurnResult | None = None
    reply: Entry | None = None
    error: str = ""
    unavailable: bool = False
    retry_after: float | None = None


@dataclass(frozen=True)
class Order:
    """A turn that somebody wants now.

    ``inputs`` become the user entries, each with its header. ``handled``: the id of what is answered, the same each
    time it is tried; without it, the turn's own. ``marks`` are left with the commit; one that is there already makes the
    order AlreadyDone. ``hops``: of what the turn sends. ``check`` runs in the transaction that takes the lane and
    raises to refuse. ``also`` runs in the transaction of the commit, with the lanes of ``also_lanes`` locked too.
    ``keep_failure``: a turn that comes to nothing leaves its entries, with the error, and its marks, so that it is over;
    without it only the Turn says that it failed, and the order can be tried again.
    """

    session: Session
    origin: Turn.Origin
    inputs: tuple[TurnInput, ...]
    handled: str = ""
    marks: Sequence[Mark] = ()
    hops: int = 0
    check: Callable[[], None] | None = None
    also: Callable[[Turn, Thought], None] | None = None
    also_lanes: Collection[str] = ()
    emit: Emit = unwatched
    keep_failure: bool = True


@dataclass(frozen=True)
class Ended:
    """How a direct turn ended. ``state`` None: the lane was lost, and nothing was written."""

    turn: Turn
    state: Turn.State | None
    thought: Thought

    @property
    def text(self) -> str:
        return self.thought.reply.text if self.thought.reply else ""


class DirectTurns:
    """Runs direct turns under one lane holder of this process. A context manager; its methods may be called in any thread."""

    def __init__(self, kind: Holder.Kind) -> None:
        self._holder = LaneHolder(kind)
        self._closing = threading.Event()
        self._running: set[DirectTurn] = set()
        self._beginning = 0  # that are taking their lane just now
        self._changed = threading.Condition()

    def __enter__(self) -> DirectTurns:
        self._holder.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close(patience=settings.SUZENT_SHUTDOWN_GRACE)
        self._holder.__exit__(kind, error, trace)

    def close(self, *, patience: float) -> None:
        """Begin nothing more, let running turns finish within ``patience`` (seconds), give up on the rest."""
        with self._changed:
            self._closing.set()
            self._changed.wait_for(lambda: not (self._running or self._beginning), timeout=patience)
            self._changed.wait_for(lambda: not self._beginning, timeout=lanes.lease().total_seconds())  # a transaction at most
            left = list(self._running)
        for turn in left:
            turn.give_up()
        with self._changed:
            self._changed.wait_for(lambda: not self._running, timeout=lanes.lease().total_seconds())

    def run(self, order: Order, *, wait: float = 0.0) -> Ended:
        """``begin`` and ``finish`` in one."""
        return self.begin(order, wait=wait).finish()

    def begin(self, order: Order, *, wait: float = 0.0) -> DirectTurn:
        """Take the lane and start the turn, waiting at most ``wait`` seconds for the lane. Call ``finish`` on the answer.

        Raises LaneBusy, AlreadyDone, SessionGone, and what the order's ``check`` raises.
        """
        give_up_at = time.monotonic() + wait
        pause = FIRST_LOOK
        while (begun := self._take(order)) is None:
            left = give_up_at - time.monotonic()
            if left <= 0 or self._closing.is_set():
                self._stop_wanting(order, waited=wait > 0)
                raise LaneBusy(retry_after=RETRY_AFTER)
            lanes.want(order.session.lane_key, now=database_now())
            self._closing.wait(min(pause, left))
            pause = min(pause * 1.5, LONGEST_LOOK)
        return begun

    def _stop_wanting(self, order: Order, *, waited: bool) -> None:
        if waited:
            lanes.want_no_more(order.session.lane_key)

    def _take(self, order: Order) -> DirectTurn | None:
        if not lanes.may_take(order.session.lane_key, now=database_now()) or not self._may_begin():
            return None
        try:
            return self._start(order)
        finally:
            with self._changed:
                self._beginning -= 1
                self._changed.notify_all()

    def _may_begin(self) -> bool:
        """Asked in the same breath as it is noted: who closes waits for those that it did not see."""
        with self._changed:
            if self._closing.is_set():
                return False
            self._beginning += 1
            return True

    def _start(self, order: Order) -> DirectTurn | None:
        with durable():
            now = database_now()
            hold = lanes.take(order.session.lane_key, self._holder.owner, now=now)
            if hold is None:
                return None
            _refuse_if_gone(order.session)
            _refuse_if_done(order)
            if order.check is not None:
                order.check()
            turns.close_lost([order.session.pk], now=now)
            [turn] = turns.start([Beginning(hold, order.session.pk, [], order.origin, order.hops)], now=now)
        return self._begun(order, hold, turn)

    def _begun(self, order: Order, hold: Hold, turn: Turn) -> DirectTurn:
        self._holder.beat(free=0)  # it lives, for those on other machines
        begun = DirectTurn(order, hold, turn, self._holder.watch(hold.key, turn.pk), over=self._over)
        with self._changed:
            self._running.add(begun)
        return begun

    def _over(self, turn: DirectTurn) -> None:
        self._holder.forget(turn.hold.key)
        with self._changed:
            self._running.discard(turn)
            self._changed.notify_all()


def _refuse_if_gone(session: Session) -> None:
    if not Session.objects.open().filter(pk=session.pk, project__archived_at=None).exists():
        raise SessionGone


def _refuse_if_done(order: Order) -> None:
    """The lane is held, so nobody else can leave these marks from here on."""
    for source in DeliveryMarker.Source:
        keys = {(order.session.pk, mark.key) for mark in order.marks if mark.source == source}
        if keys and turns.marked(keys, source=source):
            raise AlreadyDone


class DirectTurn:
    """A turn that has begun, under its lane."""

    def __init__(
        self, order: Order, hold: Hold, turn: Turn, stop: threading.Event, *, over: Callable[[DirectTurn], None]
    ) -> None:
        self.hold = hold
        self.turn = turn
        self.stop = stop
        self._order = order
        self._over = over
        self._thought: Thought | None = None
        self._done = threading.Event()
        self._given_up = False

    def finish(self) -> Ended:
        """Let the agent think, commit what it did, leave the lane. It takes SUZENT_TURN_TIMEOUT at most.

        The agent thinks in a thread of its own: one that hangs is left behind, with its lane fenced off from it.
        """
        threading.Thread(target=self._think, name=f"direct-{self.turn.pk}", daemon=True).start()
        try:
            in_time = self._done.wait(settings.SUZENT_TURN_TIMEOUT)
            if self._given_up:
                return self._fail(_without_result(DRAINED))
            return self._settle(self._thought or _without_result(NO_ANSWER if in_time else _too_long()))
        finally:
            self.stop.set()
            self._over(self)

    def give_up(self) -> None:
        """Wait no longer for the agent; nothing of the turn is kept."""
        self._given_up = True
        self.stop.set()
        self._done.set()

    def _think(self) -> None:
        order = self._order
        handled = (order.handled,) if order.handled else ()
        try:
            result = think(Assignment(order.session, self.turn, self.hold, order.inputs, handled, order.emit), self.stop)
            usage = storable_json(result.usage)
            self._thought = Thought(replace(result, usage=usage), reply_of(result))
        except Unavailable as unavailable:
            error = f"unavailable: {unavailable.detail}"
            self._thought = Thought(error=cut(error, ERROR_LIMIT), unavailable=True, retry_after=unavailable.retry_after)
        except Exception as error:  # noqa: BLE001  # the border around one turn: its caller is told
            log.warning("turn_raised", agent_id=order.session.pk, origin=order.origin, error=type(error).__name__)
            self._thought = _without_result(f"{type(error).__name__}: {error}")
        finally:
            connection.close()
            self._done.set()

    def _settle(self, thought: Thought) -> Ended:
        if thought.result is None and not self._order.keep_failure and not self._was_asked_to_stop():
            return self._fail(thought)
        try:
            state = lanes.until_lease_ends(lambda: turns.commit([self._commit_of(thought)], now=database_now())).get(self.turn.pk)
        except (IntegrityError, DataError, TypeError, ValueError) as error:  # the last two: it is not JSON
            return self._fail(_without_result(f"{type(error).__name__}: {first_line(error)}"))
        if state is None:
            log.warning("commit_refused", agent_id=self._order.session.pk, origin=self._order.origin, epoch=self.hold.epoch)
        lanes.until_lease_ends(self._leave)
        return Ended(self.turn, state, thought)

    def _was_asked_to_stop(self) -> bool:
        return lanes.until_lease_ends(lambda: turns.was_asked_to_stop(self.turn.pk))

    def _commit_of(self, thought: Thought) -> Commit:
        order = self._order
        asked = [
            Entry(TranscriptEntry.Role.USER, item.text, [dict(item.header)] if item.header else [], item.message_id)
            for item in order.inputs
        ]
        said = thought.reply or Entry(TranscriptEntry.Role.SYSTEM, f"The turn failed: {thought.error}")
        return Commit(
            self.turn, self.hold, entries=[*asked, said], marks=order.marks, error=thought.error, failed=thought.result is None,
            usage=thought.result.usage if thought.result else {},
            also=None if order.also is None else lambda: order.also and order.also(self.turn, thought), also_lanes=order.also_lanes,
        )  # fmt: skip

    def _fail(self, thought: Thought) -> Ended:
        """Nothing of it is kept but the Turn, which says why."""
        lanes.until_lease_ends(lambda: self._leave(error=thought.error))
        state = Turn.State(Turn.objects.values_list("state", flat=True).get(pk=self.turn.pk))
        return Ended(self.turn, None if state == Turn.State.RUNNING else state, thought)

    def _leave(self, error: str = "") -> None:
        """Let go of the lane, due at once: there may be mail. A turn that still runs ends as failed."""
        with durable():
            now = database_now()
            if lanes.is_held(self.hold, lanes.lock([self.hold.key])):
                turns.fail(self.turn.pk, error=error, now=now)
                lanes.release([self.hold], due_at=now)
                lanes.wake_on_commit()


def _too_long() -> str:
    return f"the turn did not end within {settings.SUZENT_TURN_TIMEOUT:g} seconds"


def _without_result(error: str) -> Thought:
    return Thought(error=cut(error, ERROR_LIMIT))


# --- The web process -------------------------------------------------------------------------------------------
_opening = threading.Lock()
_of_web: DirectTurns | None = None


def of_web() -> DirectTurns:
    """The web process's own, opened when it is first asked for; the server's end closes it (see ``close_web``)."""
    global _of_web  # noqa: PLW0603  # one a process
    with _opening:
        if _of_web is None:
            _of_web = DirectTurns(Holder.Kind.WEB).__enter__()
        return _of_web


def close_web(*, patience: float | None = None) -> None:
    """Let the direct turns of the web process finish within ``patience``, the grace period. Called at the server's end."""
    global _of_web  # one a process
    with _opening:
        closing, _of_web = _of_web, None
    if closing is not None:
        closing.close(patience=settings.SUZENT_SHUTDOWN_GRACE if patience is None else patience)
        closing.__exit__(None, None, None)
