"""Reading words for grants, peers and requests: adjectives that compose."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from django.db.models import Q, QuerySet

if TYPE_CHECKING:
    from peers_app.models import DeviceGrant, GrantRequest, Peer  # noqa: F401  # the querysets' own models


class GrantQuerySet(QuerySet["DeviceGrant"]):
    def active(self) -> GrantQuerySet:
        """Whose token is good now: a pause, a revocation and an archived project end that at once."""
        return self.filter(state="active", project__archived_at=None)


class PeerQuerySet(QuerySet["Peer"]):
    def asking(self) -> PeerQuerySet:
        return self.filter(state="asking")

    def in_use(self) -> PeerQuerySet:
        """Whose mail may go out: ready, or offline and tried again."""
        return self.filter(state__in=["ready", "offline"])

    def same_device_as(self, grant: DeviceGrant) -> PeerQuerySet:
        """That device as a peer of ours, by the reverse grant or by the identity that it claims, which proves nothing."""
        return self.filter(Q(reverse_grant=grant) | (Q(node_identity=grant.node_identity) if grant.node_identity else Q(pk=None)))

    def addressable_from(self, project: str) -> PeerQuerySet:
        """The peers that an agent of ``project`` can name."""
        return self.filter(project=project)


class RequestQuerySet(QuerySet["GrantRequest"]):
    def open(self, now: datetime) -> RequestQuerySet:
        """Not answered, and not expired."""
        return self.unexpired(now).filter(state="pending")

    def unexpired(self, now: datetime) -> RequestQuerySet:
        return self.filter(expires_at__gt=now)

    def since(self, moment: datetime) -> RequestQuerySet:
        """Made since then, answered ones included."""
        return self.filter(created_at__gt=moment)
