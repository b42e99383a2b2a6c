"""Letting an agent think: what its runtime gets to see of one turn, and what is kept of its answer."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.utils.module_loading import import_string

from sessions_app import turns
from sessions_app.lanes import Hold
from sessions_app.models import Session, TranscriptEntry, Turn
from sessions_app.runtimes.base import HistoryEntry, RunningTurn, TurnInput, TurnResult, runtime_named
from sessions_app.text import storable, storable_json
from sessions_app.transcripts import is_header

Emit = Callable[[Mapping[str, Any]], None]  # takes one AG-UI event


def unwatched(event: Mapping[str, Any]) -> None:
    """Nobody watches this turn."""


@dataclass(frozen=True)
class Assignment:
    """One turn to be thought through. ``handled``: what it answers, the same ids each time it is tried."""

    session: Session
    turn: Turn
    hold: Hold
    inputs: tuple[TurnInput, ...]
    handled: tuple[str, ...]
    emit: Emit = unwatched


def think(assignment: Assignment, stop: threading.Event) -> TurnResult:
    """Raises what the runtime raises; TypeError if it answers with something else than a TurnResult."""
    result = runtime_named(assignment.session.runtime).run(_running_turn(assignment, stop))
    if not isinstance(result, TurnResult):
        raise TypeError(f"the runtime answered with {type(result).__name__} instead of a TurnResult")
    return result


def _running_turn(assignment: Assignment, stop: threading.Event) -> RunningTurn:
    session = assignment.session
    tools = import_string(settings.TOOLS)(
        hold=assignment.hold, session=session, turn=assignment.turn, message_ids=assignment.handled, stop=stop
    )
    return RunningTurn(
        agent_id=session.agent_id, config=session.config, inputs=assignment.inputs, tools=tools, emit=assignment.emit, stop=stop,
        history=lambda limit: [
            HistoryEntry(entry.seq, entry.role, entry.text, entry.created_at) for entry in turns.history(session.agent_id, limit)
        ],
    )  # fmt: skip


def reply_of(result: TurnResult) -> turns.Entry:
    """The reply as it is kept, without parts that would imitate the header that only we write.

    Raises TypeError or ValueError for parts that are not JSON.
    """
    parts = [part for part in storable_json(result.parts) if not is_header(part)]
    return turns.Entry(TranscriptEntry.Role.ASSISTANT, storable(result.text), parts)
