"""Reading words for messages: they compose, and nobody spells out a status filter elsewhere."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING

from django.db.models import OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce

from sessions_app.models import Lane, Session

if TYPE_CHECKING:
    from inbox_app.models import DedupeKey, Message  # noqa: F401  # the querysets' own models


class MessageQuerySet(QuerySet["Message"]):
    def unsettled(self) -> MessageQuerySet:
        return self.filter(lane__isnull=False)

    def waiting_in(self, lane: str) -> MessageQuerySet:
        """Pending in the lane, in the order in which they will run."""
        return self.filter(lane=lane, status="pending").order_by("lane", "status", "id")

    def running_in(self, lane: str) -> MessageQuerySet:
        return self.filter(lane=lane, status="processing").order_by("lane", "status", "id")

    def head_of(self, lane: str) -> Message | None:
        """What the lane is to run now: what is in processing, else the lowest id that is unsettled."""
        return self.running_in(lane).first() or self.waiting_in(lane).first()

    def overdue(self, now: datetime) -> MessageQuerySet:
        """Past their validity and not started."""
        return self.unsettled().filter(valid_until__lte=now, status="pending")

    def settled_before(self, moment: datetime) -> MessageQuerySet:
        return self.filter(settled_at__lt=moment)

    def failed(self) -> MessageQuerySet:
        return self.filter(reason__isnull=False)

    def between(self, session: Session | str) -> MessageQuerySet:
        """Sent or received by the session."""
        return self.filter(sender=session) | self.filter(session=session)

    def heads(self, lanes: Collection[str]) -> dict[str, Message]:
        """``head_of`` for many lanes in two queries, with what a turn needs of session and sender."""
        waiting = self.model._default_manager.filter(lane=OuterRef("key"), status="pending").order_by("lane", "status", "id")
        running = self.model._default_manager.filter(lane=OuterRef("key"), status="processing").order_by("lane", "status", "id")
        ids = Lane.objects.filter(key__in=lanes).values_list(
            Coalesce(Subquery(running.values("id")[:1]), Subquery(waiting.values("id")[:1])), flat=True
        )
        found = self.filter(pk__in=[pk for pk in ids if pk is not None]).select_related("session__project", "sender")
        return {str(message.lane): message for message in found}


class DedupeKeyQuerySet(QuerySet["DedupeKey"]):
    def settled_before(self, moment: datetime) -> DedupeKeyQuerySet:
        return self.filter(settled_at__lt=moment)
