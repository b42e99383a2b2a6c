"""The minutely probe: peers that are away or have turned us away are asked who we are, so that their mail need not wait."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import structlog
from django.db import connection

from peers_app import client, contact, lines
from peers_app.models import Peer
from sessions_app.clock import database_now
from suzent_site.errors import SuzentError

AT_ONCE = 8  # calls side by side, 5 s each at most

log = structlog.get_logger(__name__)


def probe() -> None:
    """The django-q2 entry point. Safe to run twice, late or never."""
    away = list(Peer.objects.filter(state__in=[Peer.State.OFFLINE, Peer.State.REVOKED], project__archived_at=None).exclude(sealed_token=""))
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        answers = list(pool.map(_answers, away))
    back = [peer for peer, answered in zip(away, answers, strict=True) if answered]
    for peer in back:
        contact.heard(peer, now=database_now(), look=True)
    if away:
        log.info("peers_probed", away=len(away) - len(back), back=len(back))


def _answers(peer: Peer) -> bool:
    try:
        lines.to(peer).whoami()
    except client.TurnedAway:
        return False
    except SuzentError:  # unreachable, refused, not proven or not a peer: nothing is known, and nothing changes
        return False
    finally:
        connection.close()
    return True
