"""The transport to peers: one POST for each try, and what the tools show of agents on other machines."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, TypeVar

import structlog
from django.conf import settings
from django.db import DatabaseError, InterfaceError, connection

from inbox_app.backoff import Policy, delay
from inbox_app.deliveries import Acknowledgement, Ended, Parcel, RemoteTarget, Setback
from inbox_app.judgement import Judgement
from inbox_app.judgement import Verdict as Judged
from inbox_app.models import Attempt, Message
from inbox_app.transports import Remote
from peers_app import answers, client, contact, lines
from peers_app.answers import Meaning, Verdict
from peers_app.client import Line
from peers_app.models import Peer
from peers_app.querysets import PeerQuerySet
from sessions_app.authentication import Caller
from sessions_app.clock import database_now
from sessions_app.lanes import until_lease_ends
from sessions_app.models import Lane
from sessions_app.querysets import REMOTE_PREFIX
from suzent_site.addresses import AddressRefused
from suzent_site.errors import Conflict, NotFound, SuzentError
from suzent_site.faults import crash_point
from suzent_site.outbound import Unreachable
from suzent_site.shown import age, span

HELD_LOOK = timedelta(minutes=1)  # until a lane is looked at again that should have been paused
INTERRUPTED = timedelta(seconds=2)  # until it is tried again after our own database was away
EARLY = 0.75  # of its backoff: a try before that was made because the peer gave a sign of life
ANSWERED = frozenset({Meaning.TAKEN, Meaning.REFUSED, Meaning.BUSY})

T = TypeVar("T")
log = structlog.get_logger(__name__)
_rng = random.Random()
_ADDRESS = re.compile(r"peer:[0-9a-f]{12}", re.ASCII)


class PeerUnavailable(SuzentError):
    """The peer cannot be asked just now."""

    code = "peer_unavailable"
    status = 503


class PeerNotInUse(Conflict):
    """Nothing goes to this peer at present."""

    code = "peer_not_in_use"


class PeerTransport(Remote):
    attempts = 48  # wire.md 4

    def lifetime(self, asked: timedelta | None) -> timedelta:
        horizon = timedelta(seconds=settings.SUZENT_PEER_HORIZON)
        return horizon if asked is None else min(asked, horizon)

    def is_gone(self, message: Message) -> bool:
        return not _open_peers().filter(pk=_id_in(message.target)).exists()

    def is_closed(self, target: RemoteTarget) -> bool:
        return not _open_peers().filter(pk=_id_in(target.agent_id)).exists()

    def target(self, caller: Caller, agent_id: str) -> RemoteTarget:
        peer = _named(caller, agent_id)
        return RemoteTarget(peer.agent_id, peer.project_id)

    def listing(self, caller: Caller, *, active: bool, after: str, limit: int) -> Sequence[dict[str, Any]]:
        peers = _within_reach(caller).filter(pk__gt=after.removeprefix(REMOTE_PREFIX)).order_by("pk")
        return [_shown(peer) for peer in (peers.filter(state=Peer.State.READY) if active else peers)[:limit]]

    def read(self, caller: Caller, agent_id: str, *, before: int | None, now: datetime) -> dict[str, Any]:
        peer = _named(caller, agent_id)
        found = _live(peer, lambda line: line.conversation(), now=now)
        shown = found if before is None else found.before(before)
        return {
            "agent_id": peer.agent_id, "kind": "remote", "status": "active" if shown.active else "idle", "title": peer.name,
            "messages": [
                {"seq": entry.seq, "role": entry.role, "text": entry.text, "created_at": entry.created_at} for entry in shown.entries
            ],
            "message_count": shown.count, "omitted_message_count": shown.omitted, "transcript_truncated": shown.truncated,
        }  # fmt: skip

    def stop(self, caller: Caller, agent_id: str, *, now: datetime) -> bool:
        try:
            _live(_named(caller, agent_id), lambda line: line.stop(), now=now)
        except client.NothingRuns:
            return False
        return True

    def obstacles(self, message: Message, *, lane: Lane, now: datetime) -> list[str]:
        peer = Peer.objects.filter(pk=_id_in(message.target)).first()
        if peer is None:
            return ["peer removed"]
        if peer.state not in (Peer.State.READY, Peer.State.OFFLINE):
            return [HELD[Peer.State(peer.state)]]
        if lane.lease_owner is None and lane.failures and lane.due_at is not None and lane.due_at > now:
            away = "peer away" if peer.state == Peer.State.OFFLINE else "peer busy"
            return [f"{away}, next try in {span((lane.due_at - now).total_seconds())}"]
        return []

    def deliver(self, parcel: Parcel) -> Ended:
        tried = Try(parcel)
        try:
            return tried.made()
        except (DatabaseError, InterfaceError) as error:
            connection.close()
            return tried.interrupted(f"database: {type(error).__name__}")
        except Exception as error:  # the border around one delivery
            log.exception("delivery_failed", message_id=parcel.message.message_id, agent_id=parcel.message.target)
            return tried.broken(type(error).__name__)


HELD = {
    Peer.State.ASKING: "the peer's answer to our request for a grant",
    Peer.State.PAUSED: "peer paused by an operator",
    Peer.State.REVOKED: "peer does not take our token any more; its operator or ours must act",
    Peer.State.OFF: "peer switched off",
}


@dataclass
class Try:
    """One try of a parcel. ``sent``: the request may be on its way."""

    parcel: Parcel
    sent: bool = False

    def made(self) -> Ended:
        peer = Peer.objects.in_use().filter(pk=_id_in(self.parcel.message.target)).first()
        if peer is None:
            return self._held("the peer is not in use")
        patience = Patience.of(self.parcel)
        verdict = self._verdict(peer)
        now = _now()
        _note(peer, verdict, now=now)
        return self._ended(verdict, patience, now=now)

    def interrupted(self, why: str) -> Ended:
        """The database went away: not the message's fault."""
        return self._held(why, wait=INTERRUPTED, maybe_delivered=self.sent)

    def broken(self, why: str) -> Ended:
        """Something that nobody thought of: it may well be the message, so it is charged."""
        retry_at = _now() + delay(self.parcel.message.attempts + 1, _policy(), rng=_rng)
        return Ended(setback=Setback(why, retry_at, charged=True, maybe_delivered=self.sent))

    def _held(self, why: str, *, wait: timedelta = HELD_LOOK, maybe_delivered: bool = False) -> Ended:
        return Ended(setback=Setback(why, _now() + wait, outcome=Attempt.Outcome.RELEASED, maybe_delivered=maybe_delivered))

    def _verdict(self, peer: Peer) -> Verdict:
        message = self.parcel.message
        try:
            line = lines.to(peer)
            crash_point("peer.before_send")
            self.sent = True
            answer = line.send(message.message_id, message.content, hops=message.hops)
            crash_point("peer.after_send")
        except Unreachable as error:
            return answers.of_silence(error)
        except SuzentError as error:  # the address is refused, nothing proved there, the token not opened: nothing was sent
            return Verdict(Meaning.NONE, error.detail)
        verdict = answers.of_answer(answer, message_id=message.message_id, now=database_now())
        return replace(verdict, words=line.without_token(verdict.words))

    def _ended(self, verdict: Verdict, patience: Patience, *, now: datetime) -> Ended:
        words = f"the peer: {verdict.words}"
        if verdict.meaning == Meaning.TAKEN:
            return Ended(acknowledgement=Acknowledgement(self.parcel.hold, self.parcel.message, answer=verdict.told))
        if verdict.meaning == Meaning.REFUSED:
            return Ended(refusal=Judgement(Judged.FAIL, verdict.reason, words))
        if verdict.meaning == Meaning.UNAUTHORISED:
            return Ended(setback=Setback(words, now, outcome=Attempt.Outcome.RELEASED))
        if verdict.retry_after is not None:
            return Ended(setback=patience.as_asked(verdict.retry_after, words, maybe=verdict.maybe_taken, now=now))
        return Ended(setback=patience.setback(words, maybe=verdict.maybe_taken, now=now))


@dataclass(frozen=True)
class Patience:
    """How long the lane waits after a try that came to nothing: backoff and its counter belong to the lane.

    ``last``: when the try before ended that was charged.
    """

    failures: int
    last: datetime | None

    @classmethod
    def of(cls, parcel: Parcel) -> Patience:
        failures = Lane.objects.values_list("failures", flat=True).get(key=parcel.hold.key)
        charged = Attempt.objects.filter(message=parcel.message, outcome=Attempt.Outcome.RETRIED).order_by("-number")
        return cls(failures, charged.values_list("finished_at", flat=True).first())

    def setback(self, words: str, *, maybe: bool, now: datetime) -> Setback:
        """Charged; but a try before its time, after a sign of life, costs nothing and keeps the time of the next."""
        if self.last is not None and self.failures and now < self.last + EARLY * self._wait(self.failures):
            due_at = max(self.last + self._wait(self.failures), now + timedelta(seconds=2))
            return Setback(words, due_at, outcome=Attempt.Outcome.RELEASED, maybe_delivered=maybe)
        retry_at = now + delay(self.failures + 1, _policy(), rng=_rng)
        return Setback(words, retry_at, charged=True, maybe_delivered=maybe)

    def as_asked(self, seconds: float, words: str, *, maybe: bool, now: datetime) -> Setback:
        """When the peer said, within a second and the cap; with jitter, since it may have told many."""
        wait = min(max(seconds, 1.0), settings.SUZENT_PEER_BACKOFF_CAP) * _rng.uniform(1, 1.2)
        return Setback(
            words, now + timedelta(seconds=wait), outcome=Attempt.Outcome.RELEASED, deferred=True, maybe_delivered=maybe
        )

    def _wait(self, failures: int) -> timedelta:
        return timedelta(seconds=min(settings.SUZENT_PEER_BACKOFF_CAP, 2.0 ** min(failures, 30)))


def _policy() -> Policy:
    return Policy(base=2.0, cap=settings.SUZENT_PEER_BACKOFF_CAP, jitter=0.2)


def _note(peer: Peer, verdict: Verdict, *, now: datetime) -> None:
    """What the try tells of the peer. The message is settled all the same if this cannot be written."""
    try:
        if verdict.meaning in ANSWERED:
            contact.heard(peer, now=now)
        elif verdict.meaning == Meaning.UNAUTHORISED:
            contact.turned_away(peer, verdict.words, now=now)
        else:
            contact.missed(peer, verdict.words, now=now)
    except (DatabaseError, InterfaceError) as error:
        log.warning("peer_not_noted", peer_id=peer.pk, error=type(error).__name__)
        connection.close()


def _live(peer: Peer, ask: Callable[[Line], T], *, now: datetime) -> T:
    """Ask the peer now. Raises PeerNotInUse, PeerUnavailable, and what the call itself has to say."""
    if peer.state not in (Peer.State.READY, Peer.State.OFFLINE):
        raise PeerNotInUse(f"Not asked: {HELD[Peer.State(peer.state)]}.", state=peer.state)
    try:
        found = ask(lines.to(peer))
    except client.TurnedAway as error:
        contact.turned_away(peer, "it does not take our token", now=now)
        raise PeerNotInUse(f"Not asked: {HELD[Peer.State.REVOKED]}.", state=Peer.State.REVOKED) from error
    except (AddressRefused, Unreachable, client.NotAPeer, lines.NotProven) as error:
        contact.missed(peer, error.detail, now=now)
        raise PeerUnavailable(f"{error.detail} Last contact: {_last_contact(peer, now=now)}.") from error
    except client.NothingRuns:
        contact.heard(peer, now=now, look=True)
        raise
    contact.heard(peer, now=now, look=True)
    return found


def _last_contact(peer: Peer, *, now: datetime) -> str:
    return "never" if peer.last_contact_at is None else f"{age(peer.last_contact_at, now=now)} ago"


def _open_peers() -> PeerQuerySet:
    return Peer.objects.filter(project__archived_at=None)


def _within_reach(caller: Caller) -> PeerQuerySet:
    """What the caller can name: the peers of its project that answered our request once."""
    peers = _open_peers() if caller.project_id is None else _open_peers().addressable_from(caller.project_id)
    return peers.exclude(state=Peer.State.ASKING, sealed_token="")


def _named(caller: Caller, agent_id: str) -> Peer:
    found = _within_reach(caller).filter(pk=_id_in(agent_id)).first()
    if found is None:
        raise NotFound
    return found


def _id_in(agent_id: str) -> str:
    """Raises NotFound for what is no address of a peer."""
    if not _ADDRESS.fullmatch(agent_id):
        raise NotFound
    return agent_id.removeprefix(REMOTE_PREFIX)


def _shown(peer: Peer) -> dict[str, Any]:
    moment = (peer.last_contact_at or peer.created_at).isoformat().replace("+00:00", "Z")
    return {
        "agent_id": peer.agent_id, "title": peer.name, "kind": "remote", "status": peer.state, "project_id": peer.project_id,
        "parent_agent_id": None, "updated_at": moment,
    }  # fmt: skip


def _now() -> datetime:
    return until_lease_ends(database_now)
