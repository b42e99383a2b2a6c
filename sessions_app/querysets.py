"""Reading words: adjectives that compose. Views, tasks and the engine never spell out these filters again."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from django.db.models import Exists, OuterRef, Q, QuerySet

REMOTE_PREFIX = "peer:"  # of the address of an agent on another machine, and of its lane; no session's id begins so

if TYPE_CHECKING:
    from sessions_app.models import ApiToken, DeliveryMarker, Lane, Project, Session, Turn  # noqa: F401  # the querysets' own models


class SessionQuerySet(QuerySet["Session"]):
    def visible(self) -> SessionQuerySet:
        """What tools and pages may show: not the internal kinds."""
        return self.exclude(kind__in=self.model.INTERNAL_KINDS)

    def addressable_from(self, project: Project | str) -> SessionQuerySet:
        """The sessions that an agent of ``project`` can name, archived ones included."""
        return self.visible().filter(project=project)

    def open(self) -> SessionQuerySet:
        return self.filter(archived_at=None)

    def active(self) -> SessionQuerySet:
        """A turn of it is running."""
        from_turns = self.model._meta.get_field("turns").related_model  # the model module imports this one
        return self.open().filter(Exists(from_turns._default_manager.filter(session=OuterRef("pk"), finished_at=None)))

    def recent(self) -> SessionQuerySet:
        """Those that changed last first."""
        return self.order_by("-updated_at", "agent_id")


class TurnQuerySet(QuerySet["Turn"]):
    def running(self) -> TurnQuerySet:
        return self.filter(finished_at=None)

    def stop_requested(self) -> TurnQuerySet:
        return self.filter(stop_requested_at__isnull=False)

    def finished_before(self, moment: datetime) -> TurnQuerySet:
        return self.filter(finished_at__lt=moment)


class MarkerQuerySet(QuerySet["DeliveryMarker"]):
    def left_before(self, moment: datetime) -> MarkerQuerySet:
        return self.filter(created_at__lt=moment)


class LaneQuerySet(QuerySet["Lane"]):
    def due(self, now: datetime) -> LaneQuerySet:
        """Somebody should run what waits here: design section 3, used by claim, wake, watchdog and metrics alike."""
        return self.free(now).filter(due_at__lte=now, paused_at=None)

    def free(self, now: datetime) -> LaneQuerySet:
        """Not leased, or past its lease; and nobody has asked for it for a direct turn."""
        return self.unleased(now).filter(Q(wanted_until=None) | Q(wanted_until__lte=now))

    def unleased(self, now: datetime) -> LaneQuerySet:
        return self.filter(Q(lease_until=None) | Q(lease_until__lte=now))

    def local(self) -> LaneQuerySet:
        """What runs here: not the lanes to agents on other machines."""
        return self.exclude(key__startswith=REMOTE_PREFIX)

    def paused(self) -> LaneQuerySet:
        return self.filter(paused_at__isnull=False)

    def held_by(self, owner: str) -> LaneQuerySet:
        return self.filter(lease_owner=owner)

    def locked(self) -> LaneQuerySet:
        """Lock the rows in key order until the transaction ends; on SQLite the transaction has the only write lock."""
        return self.select_for_update().order_by("key")


class TokenQuerySet(QuerySet["ApiToken"]):
    def usable(self, now: datetime) -> TokenQuerySet:
        return self.filter(Q(expires_at=None) | Q(expires_at__gt=now), revoked_at=None, project__archived_at=None)
