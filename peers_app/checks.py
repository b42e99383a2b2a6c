"""A round of checks: which of the devices that we may drive do not know our token any more (wire.md 3 and 5.8)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import structlog

from peers_app import calls, installation
from peers_app.models import Peer
from peers_app.standing import IN_USE, move
from sessions_app.clock import database_now
from suzent_site.sealed import CannotUnseal

CHECKED = (*IN_USE, Peer.State.PAUSED)
AT_ONCE = 64  # calls side by side, each of 5 s at most

log = structlog.get_logger(__name__)


def after_hint(*, now: datetime) -> int:
    """Ask every peer; how many turned out to have revoked us. None is deleted, and who cannot be reached is left alone.

    Anybody may send the hint, so there is one round in 10 s at most.
    """
    if not installation.may_check(now=now):
        return 0
    asked = [(peer, token) for peer in Peer.objects.filter(state__in=CHECKED) if (token := _token_of(peer))]
    if not asked:
        return 0
    with ThreadPoolExecutor(max_workers=min(len(asked), AT_ONCE)) as pool:
        refused = list(pool.map(lambda item: calls.is_refused(item[0].base_url, item[1]), asked))
    gone = [peer for (peer, _), is_gone in zip(asked, refused, strict=True) if is_gone]
    return sum(move(peer, to=Peer.State.REVOKED, among=CHECKED, now=database_now(), last_error="It has revoked our grant.") for peer in gone)


def _token_of(peer: Peer) -> str:
    try:
        return peer.token
    except CannotUnseal as error:
        log.warning("peer_not_checked", peer=peer.agent_id, error=error.code)
        return ""
