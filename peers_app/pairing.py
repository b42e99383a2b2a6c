"""We may drive them: asking for a grant, what becomes of it, offers of the reverse direction, and the end of a peer."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db import IntegrityError

from peers_app import calls, grants, installation, lines, tokens
from peers_app.base_url import base_url_of, host_of
from peers_app.calls import Polled, Standing
from peers_app.models import DeviceGrant, Peer
from peers_app.standing import IN_USE, move, move_in_step
from peers_app.wire import Offer
from sessions_app import lanes
from sessions_app.models import Project
from suzent_site.errors import Conflict, NotFound
from suzent_site.sealed import seal
from suzent_site.transactions import durable

State = Peer.State
ANSWER_WITHIN = timedelta(minutes=10)  # wire.md 2: a request is open for so long there
SPENT = (State.REVOKED, State.OFF)
NO_OFFER = {"offered_url": "", "offered_token": ""}  # a token that came later makes an earlier offer void


class AlreadyPaired(Conflict):
    """This project has a peer at that address already."""

    code = "already_paired"


class NotPossible(Conflict):
    """That is not possible for a peer in this state."""

    code = "not_possible"


class NoAddress(Conflict):
    """Nobody outside reaches this installation: set SUZENT_PUBLIC_URL, or SUZENT_HOST to an address of this machine."""

    code = "no_address"


# --- asking ------------------------------------------------------------------------------------------------------
def ask(url: str, *, project: Project, now: datetime) -> Peer:
    """Ask the device there for a grant; its answer is fetched in the background.

    Asked before and not answered yet: the same request. A peer that was revoked or is off keeps its mail and is asked
    again. Raises Invalid, AlreadyPaired, and what ``calls.ask`` does.
    """
    base_url = base_url_of(url, field="URL")
    known = _known_at(base_url, project=project)
    if known is not None and known.state == State.ASKING and known.expires_at is not None and known.expires_at > now:
        return known
    if known is not None and known.state not in (*SPENT, State.ASKING):
        raise AlreadyPaired
    request_id = calls.ask(
        base_url, name=installation.device_name(), identity=installation.node_identity(),
        address=installation.our_address(seen_from=host_of(base_url)),
    )  # fmt: skip
    return _asking(known, base_url, request_id, project=project, now=now)


def _known_at(base_url: str, *, project: Project) -> Peer | None:
    """The one that has this address, else the newest that gave it up."""
    there = Peer.objects.filter(project=project, base_url=base_url).order_by("-created_at")
    return there.exclude(state=State.OFF).first() or there.first()


def _asking(known: Peer | None, base_url: str, request_id: str, *, project: Project, now: datetime) -> Peer:
    asked = {"request_id": request_id, "expires_at": now + ANSWER_WITHIN, "last_error": ""}
    peer = known or Peer(project=project, name=host_of(base_url), base_url=base_url, created_at=now, **asked)
    try:
        with durable():
            if known is None:
                peer.save(force_insert=True)
                lanes.ensure(peer.lane_key)
                lanes.hold_up(peer.lane_key, now=now)
            elif not move_in_step(known, to=State.ASKING, among=[*SPENT, State.ASKING], now=now, **asked):
                raise AlreadyPaired
    except IntegrityError as error:  # somebody else asked in the same moment
        raise AlreadyPaired from error
    peer.refresh_from_db()
    return peer


def answered(peer: Peer, polled: Polled, *, now: datetime) -> None:
    """Make of the answer to our request what it means. ``peer``: as it was when it was polled."""
    if polled.standing == Standing.APPROVED:
        _granted(peer, polled, now=now)
    elif polled.standing == Standing.DENIED:
        _over(peer, "The operator there denied it.", now=now)
    elif polled.standing == Standing.GONE or (peer.expires_at is not None and peer.expires_at <= now):
        _over(peer, polled.why or "Nobody there answered in time.", now=now)
    elif polled.why != peer.last_error:
        with durable():
            Peer.objects.asking().filter(pk=peer.pk, request_id=peer.request_id).update(last_error=polled.why)


def _over(peer: Peer, why: str, *, now: datetime) -> None:
    move(peer, to=State.OFF, among=[State.ASKING], now=now, last_error=why)


def _granted(peer: Peer, polled: Polled, *, now: datetime) -> None:
    """Its mail goes out now; but what waits for a machine does not go to another one that answers at its address."""
    kept = {
        "sealed_token": seal(polled.token), "hint": tokens.hint(polled.token), "node_identity": polled.node_identity, "verified": False,
        "last_contact_at": now, "last_error": "", **NO_OFFER,
    }  # fmt: skip
    if not peer.node_identity or peer.node_identity == polled.node_identity:
        move(peer, to=State.READY, among=[State.ASKING], now=now, **kept)
        return
    with durable():
        if move_in_step(peer, to=State.OFF, among=[State.ASKING], now=now, last_error="Another machine answers at its address."):
            made = Peer.objects.create(
                project=peer.project, name=peer.name, base_url=peer.base_url, state=State.READY, created_at=now, **kept
            )
            lanes.ensure(made.lane_key)


# --- what the operator does with a peer --------------------------------------------------------------------------
def pause(peer: Peer, *, now: datetime) -> None:
    """Hold its mail until ``resume``. Raises NotPossible."""
    if not move(peer, to=State.PAUSED, among=IN_USE, now=now):
        raise NotPossible


def resume(peer: Peer, *, now: datetime) -> None:
    """Let its mail go out: after a pause, after a revocation that is thought over, or by what it offered.

    Raises NotPossible, AlreadyPaired.
    """
    if peer.offered_token:
        _take_offer(peer, now=now)
    elif not peer.sealed_token:
        raise NotPossible("There is no token for it: ask it again.")
    else:
        _back_in_use(peer, now=now, last_error="")


def _take_offer(peer: Peer, *, now: datetime) -> None:
    _back_in_use(
        peer, now=now, base_url=peer.offered_url or peer.base_url, sealed_token=peer.offered_token, verified=False, last_error="",
        **NO_OFFER,
    )  # fmt: skip


def _back_in_use(peer: Peer, *, now: datetime, **also: object) -> None:
    try:
        moved = move(peer, to=State.READY, among=[State.PAUSED, *SPENT, *(IN_USE if "sealed_token" in also else ())], now=now, **also)
    except IntegrityError as error:
        raise AlreadyPaired from error
    if not moved:
        raise NotPossible


def remove(peer: Peer, *, now: datetime) -> None:
    """Part for good, both ways: its grant ends, its waiting mail fails as target_gone."""
    with durable():
        lanes.lock([peer.lane_key])
        grant = DeviceGrant.objects.filter(peer=peer).first()
        Peer.objects.filter(pk=peer.pk).delete()
        lanes.seize(peer.lane_key, now=now)
        lanes.wake_on_commit()
    if grant is not None and grant.state != DeviceGrant.State.REVOKED:
        grants.revoke(grant, now=now)


def peer_named(name: str) -> Peer:
    """By ``<peer_id>`` or ``peer:<peer_id>``. Raises NotFound."""
    found = Peer.objects.filter(pk=name.removeprefix("peer:")).select_related("project").first()
    if found is None:
        raise NotFound(f"There is no peer {name}.")
    return found


# --- the reverse direction ---------------------------------------------------------------------------------------
def offer(peer: Peer, *, who: str, now: datetime) -> DeviceGrant:
    """Let the peer drive us too: a grant of its own, whose token goes to it by ``peer-offer``.

    Raises NotPossible, NoAddress, CannotUnseal, and what ``lines.to`` and ``calls.offer`` do; then the grant is of no use to anybody.
    """
    address = installation.our_address(seen_from=host_of(peer.base_url)) if peer.base_url else ""
    if peer.state not in IN_USE or (peer.reverse_grant is not None and peer.reverse_grant.state != DeviceGrant.State.REVOKED):
        raise NotPossible("Only a peer that is in use and does not drive us yet can be offered that.")
    if not address:
        raise NoAddress
    minted = tokens.mint()
    calls.offer(lines.to(peer), name=installation.device_name(), our_url=address, our_token=minted.secret)
    with durable():
        grant = DeviceGrant(
            display_name=peer.name, node_identity=peer.node_identity, callback_url=peer.base_url, project=peer.project,
            digest=minted.digest, hint=minted.hint, created_at=now, created_by=who,
        )  # fmt: skip
        grant.lineage = grant.device_id
        grant.save(force_insert=True)
        Peer.objects.filter(pk=peer.pk).update(reverse_grant=grant)
    return grant


def rotate(grant: DeviceGrant, *, now: datetime) -> str:
    """Give a device a new token; the one it had ends. Its scope stays as it is.

    A peer gets the new one by an offer, and the answer is empty; any other device's operator has to carry over what is
    answered here, once. Raises NotPossible, and for a peer what ``lines.to`` and ``calls.offer`` do: then the old token stays good.
    """
    minted = tokens.mint()
    peer = Peer.objects.in_use().filter(reverse_grant=grant).first()
    if peer is not None:
        address = installation.our_address(seen_from=host_of(peer.base_url))
        calls.offer(lines.to(peer), name=installation.device_name(), our_url=address, our_token=minted.secret)
    with durable():
        if not DeviceGrant.objects.filter(pk=grant.pk, ended_at=None).update(digest=minted.digest, hint=minted.hint):
            raise NotPossible("A revoked grant has no token any more: the device has to ask again.")
    return "" if peer else minted.secret


def take_in(grant: DeviceGrant, offered: Offer, *, now: datetime) -> Peer:
    """A device that drives us offers that we drive it. Only the peer of this very grant is touched (wire.md 5.2).

    An address that the operator saw with the grant is used at once. Any other waits for the operator, and whatever he
    chose for the peer (a pause, off) stays.
    """
    peer = Peer.objects.filter(reverse_grant=grant).first() or _offered_first(grant, offered, now=now)
    seen_by_operator = peer.base_url or grant.callback_url
    if offered.base_url != seen_by_operator or not _use(peer, offered, now=now):
        _wait_for_operator(peer, offered)
    peer.refresh_from_db()
    return peer


def _offered_first(grant: DeviceGrant, offered: Offer, *, now: datetime) -> Peer:
    with durable():
        peer, made = Peer.objects.get_or_create(
            reverse_grant=grant,
            defaults={
                "project": grant.project, "name": offered.name or grant.display_name, "state": State.OFF, "created_at": now,
                "node_identity": grant.node_identity,
            },
        )  # fmt: skip
        if made:
            lanes.ensure(peer.lane_key)
            lanes.hold_up(peer.lane_key, now=now)
    return peer


def _use(peer: Peer, offered: Offer, *, now: datetime) -> bool:
    """A fresh token for the address that is approved. False: another peer has this address."""
    fresh = {
        "base_url": offered.base_url, "sealed_token": seal(offered.token), "hint": tokens.hint(offered.token), "last_contact_at": now,
        **NO_OFFER,
    }  # fmt: skip
    never_used = peer.state == State.OFF and not peer.sealed_token
    try:
        if never_used or peer.state == State.REVOKED:
            return move(peer, to=State.READY, among=[State(peer.state)], now=now, last_error="", **fresh)
        with durable():
            return Peer.objects.filter(pk=peer.pk).exclude(state=State.ASKING).update(**fresh) == 1
    except IntegrityError:
        return False


def _wait_for_operator(peer: Peer, offered: Offer) -> None:
    with durable():
        Peer.objects.filter(pk=peer.pk).update(offered_url=offered.base_url, offered_token=seal(offered.token))
