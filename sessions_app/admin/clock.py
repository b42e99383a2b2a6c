"""Ages and states as of one reading of the database's clock."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db.models import DateTimeField, QuerySet, Value
from django.http import HttpRequest

from sessions_app.clock import database_now
from sessions_app.models import Lane
from suzent_site.console import EngineOwned
from suzent_site.shown import age


class WithClock(EngineOwned):
    """Every row has ``seen_at``, the database's clock: read once for the page, since leases are measured by it."""

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        now = Value(database_now(), output_field=DateTimeField())
        return super().get_queryset(request).annotate(seen_at=now)  # type: ignore[no-any-return]


def state_of(lane: Lane, *, now: datetime) -> str:
    """In one word: a lease that has passed is stale, whatever its owner may believe."""
    if lane.lease_until:
        return "running" if lane.lease_until > now else "stale"
    if lane.paused_at:
        return "paused"
    return "due" if lane.due_at and lane.due_at <= now else "idle"


def moment(at: datetime | None, row: Any) -> str:
    """``4 s ago`` or ``in 4 s``, by the clock that the row was read with."""
    if at is None:
        return "—"
    passed = age(at, now=row.seen_at)
    return passed if passed.startswith("in ") else f"{passed} ago"
