"""Reading words for messages: they compose, and nobody spells out a status filter elsewhere."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import TYPE_CHECKING

from django.db.models import OuterRef, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce

from sessions_app.models import Lane, Session

if TYPE_CHECKING:
    from inbox_app.models import DedupeKey, Message, SubagentTask  # noqa: F401  # the querysets' own models


class MessageQuerySet(QuerySet["Message"]):
    """Each status has its word. It names the columns of a partial index too, so that a large history costs nothing."""

    def unsettled(self) -> MessageQuerySet:
        return self.filter(lane__isnull=False)

    def pending(self) -> MessageQuerySet:
        return self.unsettled().filter(status="pending")

    def processing(self) -> MessageQuerySet:
        return self.unsettled().filter(status="processing")

    def delivered(self) -> MessageQuerySet:
        return self.filter(lane=None, reason=None)

    def failed(self) -> MessageQuerySet:
        return self.filter(reason__isnull=False)

    def in_status(self, status: str) -> MessageQuerySet:
        words = {"pending": self.pending, "processing": self.processing, "delivered": self.delivered, "failed": self.failed}
        return words[status]()

    def waiting_in(self, lane: str) -> MessageQuerySet:
        """Pending in the lane, in the order in which they will run."""
        return self.filter(lane=lane, status="pending").order_by("lane", "status", "id")

    def overdue(self, now: datetime) -> MessageQuerySet:
        """Past their validity and not started."""
        return self.pending().filter(valid_until__lte=now)

    def settled_before(self, moment: datetime) -> MessageQuerySet:
        return self.filter(settled_at__lt=moment)

    def of(self, session: Session | str) -> MessageQuerySet:
        """Sent or received by the session."""
        return self.filter(Q(sender=session) | Q(session=session))

    def heads(self, lanes: Collection[str]) -> dict[str, Message]:
        """What each lane is to run now: what is in processing, else the lowest id that is unsettled. Two queries for all.

        With what a turn needs of session and sender.
        """
        every = self.model._default_manager.order_by("lane", "status", "id")
        waiting, running = (every.filter(lane=OuterRef("key"), status=status) for status in ("pending", "processing"))
        ids = Lane.objects.filter(key__in=lanes).values_list(
            Coalesce(Subquery(running.values("id")[:1]), Subquery(waiting.values("id")[:1])), flat=True
        )
        found = self.filter(pk__in=[pk for pk in ids if pk is not None]).select_related("session__project", "sender")
        return {str(message.lane): message for message in found}


class SubagentTaskQuerySet(QuerySet["SubagentTask"]):
    def unended(self) -> SubagentTaskQuerySet:
        """Queued or running."""
        return self.filter(ended_at=None)

    def ended_before(self, moment: datetime) -> SubagentTaskQuerySet:
        return self.filter(ended_at__lt=moment)

    def of(self, session: Session | str) -> SubagentTaskQuerySet:
        """Given by the session, or given to it."""
        return self.filter(Q(parent=session) | Q(child=session))


class DedupeKeyQuerySet(QuerySet["DedupeKey"]):
    def settled_before(self, moment: datetime) -> DedupeKeyQuerySet:
        return self.filter(settled_at__lt=moment)
