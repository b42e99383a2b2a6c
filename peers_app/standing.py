"""How a peer stands: the only writer of ``Peer.state``. The peer's lane is paused while its mail may not go out."""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from peers_app.models import Peer
from sessions_app import lanes
from suzent_site.transactions import durable

IN_USE = (Peer.State.READY, Peer.State.OFFLINE)


def move(peer: Peer | str, *, to: Peer.State, among: Collection[Peer.State], now: datetime, **also: Any) -> bool:
    """One guarded change of state, with other columns if need be. False: it stood otherwise, and nothing was changed."""
    with durable():
        return move_in_step(peer, to=to, among=among, now=now, **also)


def move_in_step(peer: Peer | str, *, to: Peer.State, among: Collection[Peer.State], now: datetime, **also: Any) -> bool:
    """``move`` as a step of the caller's transaction."""
    peer_id = peer if isinstance(peer, str) else peer.pk
    key = f"peer:{peer_id}"
    lanes.lock([key])
    if to != Peer.State.ASKING:
        also = {"request_id": "", "expires_at": None, **also}
    if not Peer.objects.filter(pk=peer_id, state__in=list(among)).update(state=to, **also):
        return False
    if to not in IN_USE:
        lanes.hold_up(key, now=now)
    elif not set(among) <= set(IN_USE):  # from ready to offline and back the lane keeps its own time
        lanes.go_on(key, now=now)
    return True
