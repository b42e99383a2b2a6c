"""The rows as they stand: what the laws compare before and after each deed."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from typing import Any, NamedTuple, TypeVar

from django.db import connection
from django.db.models import DateTimeField, JSONField, Model

from inbox_app.models import Attempt, Intervention, Message
from sessions_app.models import DeliveryMarker, Holder, Lane, Project, Session, TranscriptEntry, Turn

R = TypeVar("R", bound=NamedTuple)


class MessageRow(NamedTuple):
    pk: int
    project_id: str
    message_id: str
    sender_id: str | None
    session_id: str
    kind: str
    content: str
    in_reply_to: str
    hops: int
    status: str
    reason: str | None
    attempts: int
    losses: int
    deferrals: int
    redeliveries: int
    max_attempts: int
    available_at: datetime
    valid_until: datetime | None
    lane: str | None
    accepted_at: datetime
    started_at: datetime | None
    settled_at: datetime | None

    @property
    def is_waiting(self) -> bool:
        return self.lane is not None

    def is_past_its_task(self, now: datetime) -> bool:
        """A task has until then in all, however far it is."""
        return self.kind == "subagent_task" and self.valid_until is not None and self.valid_until <= now


class AttemptRow(NamedTuple):
    message_id: int
    number: int
    owner: str
    epoch: int
    turn_id: int
    outcome: str | None


class LaneRow(NamedTuple):
    key: str
    due_at: datetime | None
    lease_owner: str | None
    lease_until: datetime | None
    epoch: int
    paused_at: datetime | None


class TurnRow(NamedTuple):
    pk: int
    session_id: str
    message_ids: list[str]
    state: str
    epoch: int
    stop_requested_at: datetime | None


class EntryRow(NamedTuple):
    session_id: str
    seq: int
    role: str
    message_id: str


class MarkerRow(NamedTuple):
    session_id: str
    key: str


class SessionRow(NamedTuple):
    pk: str
    archived_at: datetime | None


class InterventionRow(NamedTuple):
    pk: int


@dataclass(frozen=True)
class Rows:
    messages: dict[int, MessageRow]
    attempts: dict[int, list[AttemptRow]]
    lanes: dict[str, LaneRow]
    turns: dict[int, TurnRow]
    markers: set[tuple[str, str]]
    entries: dict[str, list[EntryRow]]
    archived: set[str]
    interventions: int

    def waiting_in(self, lane: str) -> list[MessageRow]:
        """Unsettled, lowest id first."""
        return [message for message in self.messages.values() if message.lane == lane]

    def head_of(self, lane: str) -> MessageRow | None:
        waiting = self.waiting_in(lane)
        return next((message for message in waiting if message.status == "processing"), waiting[0] if waiting else None)

    def running_of(self, session: str) -> TurnRow | None:
        return next((turn for turn in self.turns.values() if turn.session_id == session and turn.state == "running"), None)

    def is_marked(self, message: MessageRow) -> bool:
        return (message.session_id, message.message_id) in self.markers

    def named(self, project: str, message_id: str) -> MessageRow | None:
        found = (m for m in self.messages.values() if (m.project_id, m.message_id) == (project, message_id))
        return next(found, None)


def look() -> Rows:
    messages = _all(Message, MessageRow, order="id")
    attempts: dict[int, list[AttemptRow]] = {message.pk: [] for message in messages}
    for attempt in _all(Attempt, AttemptRow, order="message_id, number"):
        attempts[attempt.message_id].append(attempt)
    entries: dict[str, list[EntryRow]] = {}
    for entry in _all(TranscriptEntry, EntryRow, order="session_id, seq"):
        entries.setdefault(entry.session_id, []).append(entry)
    return Rows(
        messages={message.pk: message for message in messages},
        attempts=attempts,
        lanes={lane.key: lane for lane in _all(Lane, LaneRow, order="key")},
        turns={turn.pk: turn for turn in _all(Turn, TurnRow, order="id")},
        markers={(mark.session_id, mark.key) for mark in _all(DeliveryMarker, MarkerRow, order="id")},
        entries=entries,
        archived={session.pk for session in _all(Session, SessionRow, order="agent_id") if session.archived_at},
        interventions=len(_all(Intervention, InterventionRow, order="id")),
    )  # fmt: skip


def _all(model: type[Model], row: type[R], *, order: str) -> list[R]:
    """By hand, since it is done after every deed and composing a query costs the ORM ten times its execution."""
    statement, converters = _statement(model, row, order)
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return [row(*(convert(value) for convert, value in zip(converters, values, strict=True))) for values in cursor.fetchall()]


@cache
def _statement(model: type[Model], row: type[NamedTuple], order: str) -> tuple[str, list[Callable[[Any], Any]]]:
    fields = [model._meta.pk if name == "pk" else model._meta.get_field(name) for name in row._fields]
    columns = ", ".join(connection.ops.quote_name(field.column) for field in fields)
    converters = [_moment if isinstance(field, DateTimeField) else _json if isinstance(field, JSONField) else _as_is for field in fields]
    return f"SELECT {columns} FROM {model._meta.db_table} ORDER BY {order}", converters


def _as_is(value: Any) -> Any:
    return value


def _moment(value: Any) -> Any:
    """SQLite keeps them in UTC, without saying so."""
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and value.tzinfo is None else value


def _json(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


TABLES = [TranscriptEntry, DeliveryMarker, Attempt, Intervention, Message, Turn, Session, Lane, Holder, Project]


def clear() -> None:
    """An empty database for the next example: much faster than flushing or migrating one."""
    with connection.cursor() as cursor:
        for model in TABLES:
            cursor.execute(f"DELETE FROM {connection.ops.quote_name(model._meta.db_table)}")
