"""The line to a peer, after its proof where it can give one: "verified" from then on, and never spoken to unproved again."""

from __future__ import annotations

import time

import structlog

from peers_app import proof
from peers_app.client import Line
from peers_app.models import Peer
from peers_app.proof import Outcome
from suzent_site.errors import SuzentError
from suzent_site.transactions import durable

ASKED_AGAIN_AFTER = 3600.0  # seconds; a device of version 0.9.1 may have been updated meanwhile

log = structlog.get_logger(__name__)
_silent_until: dict[tuple[str, str, str], float] = {}  # peer, address, token's hint -> a reading of the monotonic clock


class NotProven(SuzentError):
    """The machine at the peer's address did not prove that it holds our grant; it got neither our token nor the mail."""

    code = "peer_unavailable"
    status = 503


def to(peer: Peer) -> Line:
    """Raises CannotUnseal, AddressRefused, Unreachable (nothing was sent), NotProven."""
    line = Line(peer.base_url, peer.token)
    about = (peer.pk, peer.base_url, peer.hint)
    if not peer.verified and time.monotonic() < _silent_until.get(about, 0.0):
        return line
    outcome = proof.demand(peer.base_url, line.token)
    if outcome == Outcome.WRONG or (peer.verified and outcome == Outcome.SILENT):
        raise NotProven
    if outcome == Outcome.SILENT:
        _silent_until[about] = time.monotonic() + ASKED_AGAIN_AFTER
    elif not peer.verified:
        _verified(peer)
    return line


def _verified(peer: Peer) -> None:
    """Of this very token: another one has to prove itself anew."""
    with durable():
        Peer.objects.filter(pk=peer.pk, sealed_token=peer.sealed_token).update(verified=True)
    log.info("peer_verified", peer_id=peer.pk)
