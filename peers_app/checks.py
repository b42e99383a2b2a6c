"""A round of checks: which of the devices that we may drive do not know our token any more (wire.md 3 and 5.8)."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import structlog
from django.db import connection

from peers_app import client, installation, lines
from peers_app.models import Peer
from peers_app.standing import IN_USE, move
from sessions_app.clock import database_now
from suzent_site.errors import SuzentError

CHECKED = (*IN_USE, Peer.State.PAUSED)
AT_ONCE = 64  # calls side by side, each of 5 s at most

log = structlog.get_logger(__name__)


def after_hint(*, now: datetime) -> int:
    """Ask every peer; how many turned out to have revoked us. None is deleted, and who cannot be reached is left alone.

    Anybody may send the hint, so there is one round in 10 s at most.
    """
    if not installation.may_check(now=now):
        return 0
    asked = list(Peer.objects.filter(state__in=CHECKED).exclude(sealed_token=""))
    if not asked:
        return 0
    with ThreadPoolExecutor(max_workers=min(len(asked), AT_ONCE)) as pool:
        refused = list(pool.map(_has_revoked, asked))
    gone = [peer for peer, is_gone in zip(asked, refused, strict=True) if is_gone]
    return sum(move(peer, to=Peer.State.REVOKED, among=CHECKED, now=database_now(), last_error="It has revoked our grant.") for peer in gone)


def _has_revoked(peer: Peer) -> bool:
    """False where it cannot be asked: unreachable is not revoked."""
    try:
        lines.to(peer).whoami()
    except client.TurnedAway:
        return True
    except SuzentError as error:
        log.info("peer_not_checked", peer=peer.agent_id, error=error.code)
        return False
    finally:
        connection.close()
    return False
