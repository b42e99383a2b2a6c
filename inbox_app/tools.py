"""The tools that agents call, once for REST and for running turns alike.

``TOOLS`` is the one list: what it says of a tool (name, description, arguments) is what ``GET /api/tools`` shows,
what the URLs serve and what ``turn.tools`` obeys.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Count
from rest_framework import serializers as rest
from rest_framework.exceptions import ValidationError

from inbox_app import profiles, serializers, subagents, transports
from inbox_app.aside import standing_aside
from inbox_app.deliveries import Draft, RemoteTarget
from inbox_app.mailbox import has_seen
from inbox_app.models import Message
from inbox_app.results import WAIT_LIMIT
from inbox_app.tool_schema import json_schema
from inbox_app.transitions import accept
from sessions_app import transcripts
from sessions_app.actions import stop_session
from sessions_app.authentication import Caller
from sessions_app.clock import database_now
from sessions_app.exceptions import first_complaint
from sessions_app.lanes import Hold, LeaseLost, holds_still
from sessions_app.models import Session, Turn, lane_key_of
from sessions_app.pages import page_of_sessions, seal, status_of, statuses, unseal
from sessions_app.querysets import REMOTE_PREFIX
from sessions_app.serializers import StrictSerializer
from suzent_site.errors import Conflict, Invalid, NotFound, Refused, SuzentError

LOOK_EVERY = 0.1  # seconds between looks at a sub-agent that a turn waits for


class AgentRequired(SuzentError):
    """Name the session that acts in the header X-Suzent-Agent."""

    code = "agent_required"
    status = 400


class ActorArchived(Refused):
    """The session that acts is archived."""

    code = "archived"


class NotActive(Conflict):
    """Nothing of this agent is running."""

    code = "not_active"


class UnknownTool(NotFound):
    """There is no such tool."""

    code = "unknown_tool"


class ToolNotAllowed(Refused):
    """This session may not use that tool."""

    code = "tool_not_allowed"


@dataclass(frozen=True)
class Tool:
    """``run(caller, now=…, hold=…, **arguments)``; ``hold`` is the lane of the turn that calls, None over REST."""

    name: str
    description: str
    arguments: type[StrictSerializer]
    answer: type[rest.Serializer[Any]]
    run: Callable[..., dict[str, Any]]
    needs_session: bool = True
    status: int = 200  # of the HTTP answer
    refusals: tuple[int, ...] = ()  # beyond those that every tool has

    def checked(self, arguments: Any) -> dict[str, Any]:
        """Raises Invalid, naming the first field that is wrong."""
        serializer = self.arguments(data=arguments)
        try:
            serializer.is_valid(raise_exception=True)
        except ValidationError as error:
            raise first_complaint(error.detail) from error
        return dict(serializer.validated_data)

    def as_function(self) -> dict[str, Any]:
        """The form in which function-calling APIs take it."""
        parameters = json_schema(self.arguments())
        return {"type": "function", "name": self.name, "description": self.description, "parameters": parameters}


def call(tool: Tool, caller: Caller, arguments: Any, *, now: datetime) -> dict[str, Any]:
    """One call from outside a turn."""
    if tool.needs_session and caller.session is None:
        raise AgentRequired
    if caller.session is not None and caller.session.archived_at is not None:
        raise ActorArchived
    if caller.session is not None and not profiles.may_use(caller.session, tool.name):
        raise ToolNotAllowed
    return tool.run(caller, now=now, hold=None, **tool.checked(arguments))


# --- The tools themselves --------------------------------------------------------------------------------------


def agent(caller: Caller, *, now: datetime, hold: Hold | None, task_id: str = "", **wish: Any) -> dict[str, Any]:
    """Only spawns; who waits for the result of a task that does not run in the background is the caller of this."""
    if caller.session is None:
        raise AgentRequired
    task = subagents.spawn(caller.session, subagents.Wish(**wish), now=now, hold=hold, task_id=task_id)
    return subagents.brief(task)


def agent_list(
    caller: Caller, *, now: datetime, hold: Hold | None, status: str, limit: int, cursor: str = ""
) -> dict[str, Any]:
    active = status != "recent"
    agents, after = [], _last_remote_shown(cursor)
    next_cursor: str | None = None
    if after is None:
        sessions = caller.sessions().active() if active else caller.sessions().open()
        page, next_cursor = page_of_sessions(sessions, limit=limit, cursor=cursor)
        shown, unread = statuses(page), _unread([session.lane_key for session in page])
        agents = [_agent(session, status=shown[session.agent_id], unread=unread[session.lane_key]) for session in page]
    if next_cursor is None:
        others, next_cursor = _page_of_remote(caller, active=active, after=after or "", limit=limit - len(agents))
        agents += others
    return {"agents": agents, "has_more": next_cursor is not None, "next_cursor": next_cursor}


def _last_remote_shown(cursor: str) -> str | None:
    """From which address on the cursor goes on with agents on other machines, which come last; None: not there yet."""
    if not cursor.startswith(REMOTE_PREFIX):
        return None
    return str(unseal("remote", cursor.removeprefix(REMOTE_PREFIX))[0])


def _page_of_remote(caller: Caller, *, active: bool, after: str, limit: int) -> tuple[list[dict[str, Any]], str | None]:
    remote = transports.remote()
    found = [] if remote is None else list(remote.listing(caller, active=active, after=after, limit=limit + 1))
    unread = _unread([lane_key_of(agent["agent_id"]) for agent in found])
    page = [{**agent, "unread": unread[lane_key_of(agent["agent_id"])]} for agent in found[:limit]]
    last = page[-1]["agent_id"] if page else after
    return page, REMOTE_PREFIX + seal("remote", last) if len(found) > limit else None


def agent_read(
    caller: Caller, *, now: datetime, hold: Hold | None, agent_id: str, before: int | None = None
) -> dict[str, Any]:
    remote = transports.remote_for(agent_id)
    if remote is not None:
        return remote.read(caller, agent_id, before=before, now=now)
    session = caller.session_named(agent_id)
    page = transcripts.read(session, before=before)
    return {
        "agent_id": session.agent_id,
        "kind": session.kind,
        "status": status_of(session),
        "title": session.title,
        "messages": [
            {"seq": line.seq, "role": line.role, "text": line.text, "created_at": _moment(line.created_at), **line.thread}
            for line in page.lines
        ],
        "message_count": page.count,
        "omitted_message_count": page.omitted,
        "transcript_truncated": page.truncated,
    }


def agent_send(
    caller: Caller,
    *,
    now: datetime,
    hold: Hold | None,
    agent_id: str,
    message: str,
    message_id: str = "",
    in_reply_to: str = "",
    valid_for: float | None = None,
    ours: bool = False,
) -> dict[str, Any]:
    remote = transports.remote_for(agent_id)
    target = caller.session_named(agent_id) if remote is None else remote.target(caller, agent_id)
    sender = caller.session
    _refuse_oneself(caller, target)
    if in_reply_to and not has_seen(caller, in_reply_to, project=target.project_id):
        raise Invalid("in_reply_to", "names no message that you can see")
    draft = Draft(
        project_id=target.project_id,
        target=target,
        content=message,
        kind=Message.Kind.AGENT_MESSAGE if sender else Message.Kind.USER_MESSAGE,
        message_id=message_id,
        sender_id=sender.agent_id if sender else None,
        sender_label="" if sender else caller.label,
        in_reply_to=in_reply_to,
        valid_for=None if valid_for is None else timedelta(seconds=valid_for),
        hold=hold,
        ours=ours,
    )
    accepted = accept(draft, now=now)
    return {
        "message_id": accepted.message.message_id,
        "agent_id": target.agent_id,
        "status": accepted.message.status,
        "transport": accepted.message.transport,
        "created": accepted.created,
    }


def agent_stop(caller: Caller, *, now: datetime, hold: Hold | None, agent_id: str) -> dict[str, Any]:
    if not _ask_to_stop(caller, agent_id, now=now):
        raise NotActive
    return {"agent_id": agent_id, "status": "stopping"}


def _ask_to_stop(caller: Caller, agent_id: str, *, now: datetime) -> bool:
    remote = transports.remote_for(agent_id)
    if remote is not None:
        return remote.stop(caller, agent_id, now=now)
    target = caller.session_named(agent_id)
    _refuse_oneself(caller, target)
    return stop_session(target, now=now, who=caller.session.agent_id if caller.session else caller.label)


def _refuse_oneself(caller: Caller, target: Session | RemoteTarget) -> None:
    if target == caller.session:
        raise Invalid("agent_id", "is your own")


def _moment(when: datetime) -> str:
    """As every other answer writes it: in UTC, ending in Z."""
    return when.isoformat().replace("+00:00", "Z")


def _unread(lanes: list[str]) -> Counter[str]:
    waiting = Message.objects.unsettled().filter(lane__in=lanes).values_list("lane").annotate(Count("pk")).order_by()
    return Counter(dict(waiting))


def _agent(session: Session, *, status: str, unread: int) -> dict[str, Any]:
    return {
        "agent_id": session.agent_id,
        "title": session.title,
        "kind": session.kind,
        "status": status,
        "project_id": session.project_id,
        "parent_agent_id": session.parent_id,
        "updated_at": _moment(session.updated_at),
        "unread": unread,
    }


TOOLS = {
    tool.name: tool
    for tool in (
        Tool(
            name=profiles.SPAWN,
            description="Give a task to a sub-agent that is made for it. It works beside you, and its result comes to you "
            "as a message, however it ends. It knows nothing but the description, and has no sub-agents of its own.",
            arguments=serializers.AgentSpawn,
            answer=serializers.SpawnOut,
            run=agent,
            status=201,
            refusals=(409, 410, 422, 429),
        ),
        Tool(
            name="agent_list",
            description="List the agents of your project that you can read and write to, those that changed last first.",
            arguments=serializers.AgentList,
            answer=serializers.AgentListOut,
            run=agent_list,
        ),
        Tool(
            name="agent_read",
            description="Read another agent's conversation, the newest entries in their order. Reading changes nothing.",
            arguments=serializers.AgentRead,
            answer=serializers.AgentReadOut,
            run=agent_read,
            refusals=(409, 503),
        ),
        Tool(
            name="agent_send",
            description="Send a message to another agent. It is stored, the agent is woken, and its answer, if it sends "
            "one, comes to you as a message. You hear of it if the message cannot be delivered.",
            arguments=serializers.AgentSend,
            answer=serializers.AgentSendOut,
            run=agent_send,
            needs_session=False,
            status=202,
            refusals=(409, 410, 422, 429),
        ),
        Tool(
            name="agent_stop",
            description="Ask the running turn of another agent, and of the agents under it, to stop.",
            arguments=serializers.AgentStop,
            answer=serializers.AgentStopOut,
            run=agent_stop,
            status=202,
            refusals=(409, 503),
        ),
    )
}


# --- The tools inside a turn -----------------------------------------------------------------------------------


@dataclass
class TurnTools:
    """What ``turn.tools`` is: the same tools in the name of the session whose turn runs.

    Every call is refused with LeaseLost once the turn's lane has gone to another holder.
    """

    hold: Hold
    session: Session
    turn: Turn
    message_ids: Sequence[str]
    stop: threading.Event = field(default_factory=threading.Event)
    _sent: Counter[tuple[str, str]] = field(default_factory=Counter)

    def call(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        """What the tool answers. Raises SuzentError: UnknownTool, Invalid, LeaseLost, what the tool refuses."""
        tool = TOOLS.get(name)
        if tool is None:
            raise UnknownTool
        if not holds_still(self.hold):
            raise LeaseLost
        if not profiles.may_use(self.session, name):
            raise ToolNotAllowed
        checked = tool.checked(arguments)
        caller = Caller(project_id=self.session.project_id, session=self.session, label=self.session.agent_id)
        if tool.run is agent:
            return self._spawn_once(caller, **checked)
        if tool.run is not agent_send or "message_id" in checked:
            return tool.run(caller, now=database_now(), hold=self.hold, **checked)
        return self._send_once(caller, **checked)

    def _spawn_once(self, caller: Caller, *, description: str, **wish: Any) -> dict[str, Any]:
        """A turn that is run again gets the sub-agents that it made the first time."""
        number = self._sent["", description] + 1
        task_id = _digest(self.session.agent_id, self._handled, description, number)
        answer = agent(caller, now=database_now(), hold=self.hold, task_id=task_id, description=description, **wish)
        self._sent["", description] = number
        return answer if wish["run_in_background"] else self._awaited(caller, task_id)

    def _awaited(self, caller: Caller, task_id: str) -> dict[str, Any]:
        """The task's outcome; how far it is when the wait is over or this turn is to stop.

        The thread is the turn's own, but its place in the shift is left to others meanwhile.
        """
        give_up_at = time.monotonic() + WAIT_LIMIT
        with standing_aside(self.hold.key):
            while True:
                task = subagents.task_named(caller, task_id)
                if task.ended_at is not None:
                    return subagents.outcome(task)
                if time.monotonic() >= give_up_at or self.stop.wait(LOOK_EVERY):
                    return subagents.brief(task)

    def _send_once(self, caller: Caller, *, agent_id: str, message: str, **rest_of_it: Any) -> dict[str, Any]:
        """A turn that is run again makes the same ids, so what it had sent is not sent twice.

        Only what was accepted counts as sent: a refused call that is repeated is still the same message.
        """
        number = self._sent[agent_id, message] + 1
        own_id = f"turn-{_digest(self._handled, agent_id, message, number)}"
        answer = agent_send(
            caller, now=database_now(), hold=self.hold, agent_id=agent_id, message=message, message_id=own_id, ours=True,
            **rest_of_it,
        )  # fmt: skip
        self._sent[agent_id, message] = number
        return answer

    @property
    def _handled(self) -> str:
        return self.message_ids[0] if self.message_ids else f"turn {self.turn.pk}"


def _digest(*parts: str | int) -> str:
    return hashlib.sha256(json.dumps(parts).encode("ascii")).hexdigest()


def list_for_models(session: Session | None = None) -> list[dict[str, Any]]:
    """The tools that this session has (all of them where none acts), as function-calling APIs take them."""
    return [tool.as_function() for tool in TOOLS.values() if session is None or profiles.may_use(session, tool.name)]
