"""One delivery: run the turn of a message and say how it ended. No transaction is open while the agent thinks."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import structlog
from django.conf import settings
from django.db import DataError, IntegrityError, InterfaceError, OperationalError, connection

from inbox_app import results, transitions
from inbox_app.backoff import delay
from inbox_app.deliveries import Acknowledgement, Doable, Ended, Job, Parcel, Setback, Work
from inbox_app.judgement import time_out_words
from inbox_app.models import Attempt, Message
from sessions_app import lanes, turns
from sessions_app.clock import database_now
from sessions_app.models import Session, TranscriptEntry, Turn
from sessions_app.runtimes.base import TurnResult, Unavailable
from sessions_app.social import outbox
from sessions_app.text import cut, storable_json
from sessions_app.thinking import Assignment, reply_of, think
from sessions_app.turns import Commit
from suzent_site.errors import first_line

ERROR_LIMIT = 2_000  # characters of an error that are kept with the message, its attempt and its turn
LONGEST_WAIT = timedelta(hours=24)  # that an unavailable runtime may ask for

log = structlog.get_logger(__name__)
_rng = random.Random()


def run(work: Doable, stop: threading.Event) -> Ended:
    """Let the agent think. Whatever it raises becomes a setback, unless it had been asked to stop."""
    try:
        return Ended(commit=_commit_of(work, _think(work, stop)))
    except Unavailable as unavailable:
        return _ended_badly(work, stop, deferred(work, unavailable))
    except (OperationalError, InterfaceError) as error:  # the database went away under a tool: not the message's fault
        connection.close()
        return _ended_badly(work, stop, deferred(work, Unavailable(detail=f"database: {error}")))
    except Exception as error:  # noqa: BLE001  # the border around one delivery: it becomes a release or a fail
        log.warning("turn_raised", message_id=work.name, agent_id=work.session.pk, error=type(error).__name__)
        return _ended_badly(work, stop, raised(work, f"{type(error).__name__}: {error}"))


def _think(work: Doable, stop: threading.Event) -> TurnResult:
    given = work.given()
    handled = tuple(item.message_id for item in given)
    return think(Assignment(work.session, work.turn, work.hold, given, handled), stop)


def commit(done: Sequence[tuple[Doable, Commit]]) -> list[tuple[Doable, Ended]]:
    """Commit turns, all in one transaction; if the database refuses one of them, each in its own."""
    if not done:
        return []
    try:
        states = _commit([item for _, item in done])
    except (IntegrityError, DataError, TypeError, ValueError) as error:  # the last two: it is not JSON
        if len(done) == 1:
            return [(done[0][0], Ended(setback=raised(done[0][0], f"{type(error).__name__}: {first_line(error)}")))]
        return [ended for one in done for ended in commit([one])]
    return [(work, _committed(work, states.get(work.turn.pk))) for work, _ in done]


def run_and_commit(work: Doable, stop: threading.Event) -> Ended:
    """``run`` and ``commit`` of one turn, for a process of its own."""
    ended = run(work, stop)
    return ended if ended.commit is None else commit([(work, ended.commit)])[0][1]


def _commit(commits: Sequence[Commit]) -> dict[int, Turn.State]:
    """A connection lost in between is no answer: the commit is repeated, at most until the lease ends."""
    return lanes.until_lease_ends(lambda: turns.commit(commits, now=database_now()))


def _committed(work: Doable, state: Turn.State | None) -> Ended:
    if state is None:
        log.warning("commit_refused", message_id=work.name, agent_id=work.session.pk, epoch=work.hold.epoch)
        return Ended()
    if not isinstance(work, Work):
        return Ended(acknowledgement=Acknowledgement(work.hold, None))
    outcome = Attempt.Outcome.STOPPED if state == Turn.State.STOPPED else Attempt.Outcome.DELIVERED
    followers = tuple(message for message, _ in work.followers)
    return Ended(acknowledgement=Acknowledgement(work.hold, work.message, outcome, followers=followers))


def raised(work: Doable, error: str) -> Setback:
    return _charged(work, cut(error, ERROR_LIMIT), timed_out=False)


def time_limit(work: Job) -> float:
    """Seconds that this turn may take: what a task's own time-out leaves of it, at most the limit of every turn."""
    if isinstance(work, Parcel):
        return math.inf  # a call to another machine has time-outs of its own
    if not isinstance(work, Work) or not work.message.is_timed or work.message.valid_until is None:
        return settings.SUZENT_TURN_TIMEOUT
    left = (work.message.valid_until - work.attempt.started_at).total_seconds()
    return min(max(left, 0), settings.SUZENT_TURN_TIMEOUT)


def timed_out(work: Doable) -> Setback:
    if isinstance(work, Work) and time_limit(work) < settings.SUZENT_TURN_TIMEOUT:
        return _charged(work, time_out_words(work.message), timed_out=True)
    return _charged(work, f"the turn did not end within {settings.SUZENT_TURN_TIMEOUT:g} seconds", timed_out=True)


def _charged(work: Doable, error: str, *, timed_out: bool) -> Setback:
    """A turn of many messages is charged to none of them: each is tried by itself now, and pays for itself."""
    if isinstance(work, Work) and work.followers:
        return Setback(error, _now(), timed_out=timed_out)
    retry_at = _now() + delay(work.charged + 1, rng=_rng)
    return Setback(error, retry_at, charged=True, timed_out=timed_out)


def died_alone(work: Doable, error: str) -> Setback:
    """Its own process died with it: counted against the message, never charged as an attempt."""
    retry_at = _now() + delay(work.losses, rng=_rng)
    return Setback(error, retry_at, outcome=Attempt.Outcome.LOST, died_alone=True)


def lost(error: str) -> Setback:
    """It can go on at once in another worker; no fault of the message."""
    return Setback(error, _now(), outcome=Attempt.Outcome.LOST)


def drained(item: Job) -> Setback:
    on_its_way = isinstance(item, Parcel)
    return Setback("the worker was asked to stop", _now(), outcome=Attempt.Outcome.RELEASED, maybe_delivered=on_its_way)


def deferred(work: Doable, unavailable: Unavailable) -> Setback:
    wait = delay(work.deferrals + 1, rng=_rng)
    if unavailable.retry_after is not None and not math.isnan(unavailable.retry_after):
        wait = timedelta(seconds=min(max(unavailable.retry_after, 0), LONGEST_WAIT.total_seconds()))
    error = cut(f"unavailable: {unavailable.detail}", ERROR_LIMIT)
    return Setback(error, _now() + wait, outcome=Attempt.Outcome.RELEASED, deferred=True)


def _now() -> datetime:
    """A setback often comes because the database went away: its clock too is waited for, at most until the lease ends."""
    return lanes.until_lease_ends(database_now)


def _ended_badly(work: Doable, stop: threading.Event, setback: Setback) -> Ended:
    """A turn that was asked to stop is stopped, however it ended: it commits what it has and is not tried again."""
    if stop.is_set() and lanes.until_lease_ends(lambda: turns.was_asked_to_stop(work.turn.pk)):
        return Ended(commit=_commit_of(work, None, error=setback.error))
    return Ended(setback=setback)


def _commit_of(work: Doable, result: TurnResult | None, *, error: str = "") -> Commit:
    asked = [turns.Entry(TranscriptEntry.Role.USER, given.text, [dict(given.header)], given.message_id) for given in work.given()]
    answered = [] if result is None else [reply_of(result)]
    return Commit(
        work.turn, work.hold, entries=[*asked, *answered], marks=work.marks(),
        usage=storable_json(result.usage) if result else {}, error=error,
        also=_also(work, result.text if result else "", error=error), also_lanes=_also_lanes(work),
    )  # fmt: skip


def _also(work: Doable, reply: str, *, error: str) -> Callable[[], None] | None:
    """What is to be true from the same instant on: what this turn was run for has ended."""
    if not isinstance(work, Work):
        now = _now()
        return lambda: work.on_commit(reply, error, now=now)
    task = _task_of(work)
    if work.session.kind == Session.Kind.SOCIAL and reply:
        return lambda: outbox.answer_by_stored_route(work.session, reply, now=database_now())
    return None if task is None else lambda: _end_task(work, task, reply)


def _also_lanes(work: Doable) -> tuple[str, ...]:
    """The end of a task writes to its parent's inbox."""
    task = _task_of(work) if isinstance(work, Work) else None
    return () if task is None or task.sender is None else (task.sender.lane_key,)


def _task_of(work: Work) -> Message | None:
    return next((message for message, _ in work.inputs if message.is_task), None)


def _end_task(work: Work, task: Message, reply: str) -> None:
    """With the turn of its message a task ends: stopped, if the turn was."""
    ending = results.stopped(reply) if turns.was_asked_to_stop(work.turn.pk) else results.completed(reply)
    transitions.end_task(task, ending, now=database_now())
