"""What a device reaches: sessions of its own name, ``suzent:<device_id>[:<name>]``, and nothing else."""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings

from inbox_app.deliveries import Accepted, Draft
from inbox_app.errors import TargetGone
from inbox_app.models import Message
from inbox_app.querysets import MessageQuerySet
from inbox_app.transitions import accept
from peers_app.models import DeviceGrant, Peer
from peers_app.wire import Mail
from sessions_app import actions, transcripts
from sessions_app.models import Session
from sessions_app.pages import statuses
from sessions_app.querysets import SessionQuerySet
from suzent_site.errors import Conflict, Invalid, SuzentError
from suzent_site.faults import crash_point
from suzent_site.transactions import durable

SESSIONS_AT_MOST = 100  # of one device: names are free to choose
ANSWER_WITHIN = timedelta(minutes=10)  # mail from a device so soon after ours to it goes on where that was
LOOKED_BACK = 20  # messages of ours to it


class SessionEnded(Conflict):
    """This session is archived; its address is never used again."""

    code = "target_gone"


class TooManySessions(SuzentError):
    """This device has too many sessions. Use one of them, or have some archived."""

    code = "too_many_sessions"
    status = 429


class NotSetUp(SuzentError):
    """The runtime chosen for this device cannot be used in its project. The operator has to choose another."""

    code = "not_set_up"
    status = 503


def receive(grant: DeviceGrant, mail: Mail, *, hops: int, now: datetime) -> Accepted:
    """Commit a device's mail to its session's inbox.

    The id that we keep is made of the grant's lineage and theirs: a device that was paired anew and sends again what it
    had sent before runs no second turn, and no device can use up another's ids. Raises what ``accept`` does, SessionEnded.
    """
    draft = Draft(
        project_id=grant.project_id, target=opened(grant, grant.agent_id, now=now), content=mail.content,
        kind=Message.Kind.REMOTE_AGENT_MESSAGE, message_id=id_here(grant, mail.message_id), sender_label=label_of(grant),
        payload={"message_id": mail.message_id}, hops=hops_of(grant, hops, now=now), ours=True,
    )  # fmt: skip
    try:
        accepted = accept(draft, now=now)
    except TargetGone as error:
        raise SessionEnded from error
    crash_point("peer.after_receive_commit")
    return accepted


def hops_of(grant: DeviceGrant, told: int, *, now: datetime) -> int:
    """How long the chain is: as long as the device told, and longer if this answers mail of ours to the same device.

    The maximum at most: then it is the last one.
    A device of version 0.9.1 says nothing of chains, and another may say 0 each time: two agents that answer each other
    across the border would do so without end.
    """
    sent = [message for peer in Peer.objects.same_device_as(grant) for message in _newest_to(peer)]
    answered = [message.hops + 1 for message in sent if _may_be_answered(message, now=now)]
    return min(max([told, *answered]), settings.SUZENT_MAX_HOPS)


def _newest_to(peer: Peer) -> MessageQuerySet:
    away = Message.objects.filter(target=peer.agent_id, session=None)
    return away.only("hops", "started_at", "settled_at").order_by("-id")[:LOOKED_BACK]


def _may_be_answered(message: Message, *, now: datetime) -> bool:
    """It was tried, and is there since just now for all that we know."""
    return message.started_at is not None and (message.settled_at is None or now - message.settled_at < ANSWER_WITHIN)


def id_here(grant: DeviceGrant, message_id: str) -> str:
    return f"remote-{hashlib.sha256(f'{grant.lineage} {message_id}'.encode()).hexdigest()}"


def label_of(grant: DeviceGrant) -> str:
    return f"device {grant.device_id}"


def opened(grant: DeviceGrant, agent_id: str, *, now: datetime) -> Session:
    """The device's session of that id, made when it is first used. Raises TooManySessions, NotSetUp."""
    found = Session.objects.filter(pk=agent_id).first()
    if found is not None:
        return found
    if sessions_of(grant).count() >= SESSIONS_AT_MOST:
        raise TooManySessions
    try:
        with durable():
            return actions.insert_session_of_ours(
                grant.project, agent_id, now=now, title=grant.display_name, kind=Session.Kind.REMOTE,
                runtime=grant.runtime, config=config_of(grant),
            )  # fmt: skip
    except actions.IdTaken:  # another connection made it meanwhile
        return Session.objects.get(pk=agent_id)
    except Invalid as error:
        raise NotSetUp from error


def config_of(grant: DeviceGrant) -> dict[str, Any]:
    """A device's sessions use none of our tools but those that the operator ticked."""
    return {"tools": list(grant.tools)}


def sessions_of(grant: DeviceGrant) -> SessionQuerySet:
    """All that a device can name."""
    return Session.objects.filter(kind=Session.Kind.REMOTE, agent_id__startswith=grant.agent_id)


def shown(agent_id: str) -> dict[str, Any]:
    """The session as the device reads it, bounded like ``agent_read``; empty before its first message."""
    session = Session.objects.filter(pk=agent_id).first()
    if session is None:
        return _shown(agent_id, "idle", transcripts.Page(lines=[], count=0, omitted=0, truncated=False))
    active = statuses([session])[agent_id] == "active"
    return _shown(agent_id, "active" if active else "idle", transcripts.read(session))


def _shown(agent_id: str, status: str, page: transcripts.Page) -> dict[str, Any]:
    return {
        "agent_id": agent_id,
        "status": status,
        "messages": [
            {"index": line.seq, "role": line.role, "text": line.text, "timestamp": line.created_at.isoformat().replace("+00:00", "Z")}
            for line in page.lines
        ],
        "message_count": page.count,
        "omitted_message_count": page.omitted,
        "transcript_truncated": page.truncated,
    }


def stop(agent_id: str, *, now: datetime) -> bool:
    """Ask the running turn to stop. False: none runs."""
    session = Session.objects.filter(pk=agent_id).first()
    return session is not None and actions.stop_session(session, now=now, who=f"the device behind {agent_id}")
