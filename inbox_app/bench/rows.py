"""Rows in bulk for measurements: a million messages, made inside the database in seconds.

They bypass the transitions on purpose, and only ever in a database that bench made for itself.
"""

from __future__ import annotations

from datetime import datetime

from django.db import connection

from sessions_app import actions
from sessions_app.models import Project, Session
from suzent_site.transactions import durable

BATCH = 100_000  # rows in one INSERT

_SERIES = "WITH RECURSIVE n(i) AS (SELECT %(first)s UNION ALL SELECT i + 1 FROM n WHERE i < %(last)s) "
_MESSAGES = """INSERT INTO agent_inbox_messages
 (project_id, message_id, transport, sender_label, target, session_id, kind, content, payload, in_reply_to, root_id, caused_by,
  hops, status, reason, attempts, losses, deferrals, redeliveries, max_attempts, available_at, accepted_at, settled_at, lane, last_error,
  maybe_delivered, peer_answer)
 """
_SELECT = """SELECT %(project)s, %(prefix)s || i, 'local', '', {agent}, {agent}, 'agent_message', %(content)s, '{{}}', '', %(prefix)s || i, '',
  0, %(status)s, NULL, 0, 0, 0, 0, 5, %(at)s, %(at)s, %(settled)s, {lane}, '',
  FALSE, '{{}}' FROM n"""


def open_targets(project: Project, prefix: str, count: int, *, now: datetime, runtime: str = "echo") -> list[Session]:
    return [actions.open_session(project, now=now, agent_id=f"{prefix}{i}", runtime=runtime) for i in range(count)]


def delivered(project: Project, prefix: str, targets: int, count: int, *, now: datetime) -> None:
    """``count`` settled messages, spread over the sessions ``<prefix>0 … <prefix>targets-1``."""
    _insert(project, prefix, targets, count, status="delivered", at=now, settled=now, name="done")


def attempts() -> None:
    """One delivered attempt for each settled message that there is."""
    with durable(), connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO inbox_app_attempt (message_id, number, owner, epoch, started_at, finished_at, outcome, error) "
            "SELECT id, 1, 'bench', 1, accepted_at, settled_at, 'delivered', '' FROM agent_inbox_messages WHERE settled_at IS NOT NULL"
        )


def waiting(
    project: Project, prefix: str, targets: int, count: int, *, now: datetime, name: str, content: str = "a message"
) -> None:
    """``count`` pending messages, and their lanes due."""
    _insert(project, prefix, targets, count, status="pending", at=now, settled=None, name=name, content=content)
    with durable(), connection.cursor() as cursor:
        cursor.execute("UPDATE sessions_app_lane SET due_at = %s WHERE key LIKE %s", [now, f"agent:{prefix}%"])


def markers(session: Session, count: int, *, now: datetime) -> None:
    """``count`` markers of messages that the session has had."""
    with durable(), connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO sessions_app_deliverymarker (session_id, source, key, digest, seq, created_at) "
            + _SERIES
            + "SELECT %(session)s, 'message', 'done-' || i, '', i, %(at)s FROM n",
            {"first": 1, "last": count, "session": session.pk, "at": now},
        )


def analyze() -> None:
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def _insert(
    project: Project, prefix: str, targets: int, count: int, *, status: str, at: datetime, settled: datetime | None, name: str,
    content: str = "a message",
) -> None:
    agent = f"'{prefix}' || (i %% {targets})"
    lane = f"'agent:' || {agent}" if settled is None else "NULL"
    for first in range(0, count, BATCH):
        values: dict[str, str | int | datetime | None] = {
            "first": first, "last": min(first + BATCH, count) - 1, "project": project.pk, "prefix": f"{name}-{prefix}-",
            "status": status, "at": at, "settled": settled, "content": content,
        }  # fmt: skip
        with durable(), connection.cursor() as cursor:
            cursor.execute(_MESSAGES + _SERIES + _SELECT.format(agent=agent, lane=lane), values)
