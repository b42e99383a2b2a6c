"""Pages: signed cursors that hold a position, pages of sessions, and the status that is shown of them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.core import signing
from django.db.models import Q

from sessions_app.models import Session
from sessions_app.querysets import SessionQuerySet
from suzent_site.errors import Invalid

STATUSES = ["active", "idle", "archived"]


def seal(listing: str, *position: Any) -> str:
    """A cursor for ``listing``: opaque to callers, and worthless once changed or taken to another listing."""
    return signing.dumps(position, salt=f"cursor.{listing}")


def unseal(listing: str, cursor: str) -> list[Any]:
    """Raises Invalid if the cursor is not one that this listing gave."""
    try:
        return list(signing.loads(cursor, salt=f"cursor.{listing}"))
    except signing.BadSignature as error:
        raise Invalid("cursor", "is not one that this list has given") from error


def page_of_sessions(sessions: SessionQuerySet, *, limit: int, cursor: str = "") -> tuple[list[Session], str | None]:
    """The newest ``limit`` sessions from the cursor on, and the cursor of the next page or None."""
    if cursor:
        updated_at, agent_id = unseal("sessions", cursor)
        moment = datetime.fromisoformat(updated_at)
        sessions = sessions.filter(Q(updated_at__lt=moment) | Q(updated_at=moment, agent_id__gt=agent_id))
    found = list(sessions.recent()[: limit + 1])
    page = found[:limit]
    if len(found) == len(page):
        return page, None
    return page, seal("sessions", page[-1].updated_at.isoformat(), page[-1].agent_id)


def statuses(sessions: Iterable[Session]) -> dict[str, str]:
    """What each session is doing, by its id: ``active`` (a turn runs), ``idle`` or ``archived``."""
    shown = {session.agent_id: "archived" if session.archived_at else "idle" for session in sessions}
    running = Session.objects.filter(agent_id__in=shown).active().values_list("agent_id", flat=True)
    return shown | dict.fromkeys(running, "active")


def status_of(session: Session) -> str:
    return statuses([session])[session.agent_id]
