"""Reading words for social identities and replies."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from django.db.models import Exists, OuterRef, Q, QuerySet

if TYPE_CHECKING:
    from sessions_app.social.models import SocialIdentity, SocialReply  # noqa: F401  # the querysets' own models


class SocialIdentityQuerySet(QuerySet["SocialIdentity"]):
    def admitted(self) -> SocialIdentityQuerySet:
        """Allowed by the list, or by a code while their channel takes codes."""
        return self.filter(Q(source="list") | Q(channel__pairing=True), verdict="allowed")


class SocialReplyQuerySet(QuerySet["SocialReply"]):
    def unsettled(self) -> SocialReplyQuerySet:
        return self.filter(settled_at=None)

    def in_doubt(self) -> SocialReplyQuerySet:
        """The platform may have taken them, and has not said so."""
        return self.filter(status="uncertain")

    def settled_before(self, moment: datetime) -> SocialReplyQuerySet:
        return self.filter(settled_at__lt=moment)

    def due(self, now: datetime) -> SocialReplyQuerySet:
        """To be sent now, or left in the middle by a sender that died; nothing overtakes within a session."""
        before = self.model._default_manager.filter(settled_at=None, session=OuterRef("session"), pk__lt=OuterRef("pk"))
        return self.unsettled().filter(
            ~Exists(before), Q(status="pending", next_at__lte=now) | Q(status="sending", claimed_until__lte=now), channel__active=True
        )
