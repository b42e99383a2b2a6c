"""What a call to a peer tells of the peer: it lives, it is away, or it does not know our token any more.

Which calls count: deliveries, live reads and stops, and the probe. Nothing here deletes a peer (wire.md 5.6).
"""

from __future__ import annotations

from datetime import datetime, timedelta

from peers_app.models import Peer
from peers_app.standing import IN_USE, move_in_step
from sessions_app import lanes
from suzent_site.transactions import durable

NOTED_EVERY = timedelta(seconds=30)  # so that a stream of mail does not write this each time

State = Peer.State


def heard(peer: Peer, *, now: datetime, look: bool = False) -> None:
    """It answered as a peer does. ``look``: what waits for it, because it was away, is due now.

    One that had revoked our token and knows it again is in use again.
    """
    if peer.state == State.READY and peer.last_contact_at is not None and now - peer.last_contact_at < NOTED_EVERY:
        return
    with durable():
        back = move_in_step(peer, to=State.READY, among=[State.OFFLINE, State.REVOKED], now=now, last_error="", last_contact_at=now)
        if not back:
            Peer.objects.filter(pk=peer.pk).update(last_contact_at=now)
        if look and back:
            lanes.look_now([peer.lane_key], now=now)
            lanes.wake_on_commit()


def missed(peer: Peer, why: str, *, now: datetime) -> None:
    """No answer came, or none of a peer."""
    with durable():
        if not move_in_step(peer, to=State.OFFLINE, among=[State.READY], now=now, last_error=why):
            Peer.objects.filter(pk=peer.pk).update(last_error=why)


def turned_away(peer: Peer, why: str, *, now: datetime) -> None:
    """It does not take our token: its mail is held, uncharged, until it does or an operator acts."""
    with durable():
        move_in_step(peer, to=State.REVOKED, among=IN_USE, now=now, last_error=why, last_contact_at=now)
