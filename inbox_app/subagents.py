"""Sub-agents: how an agent gives a task away, how its tasks are stopped, and what a caller is told of them."""

from __future__ import annotations

import re
import secrets
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from inbox_app import limits, profiles, results, transitions
from inbox_app.deliveries import Draft
from inbox_app.errors import TaskEnded
from inbox_app.models import Message, SubagentTask
from sessions_app import lanes, transcripts, turns
from sessions_app.actions import SessionGone, insert_session_of_ours
from sessions_app.authentication import Caller
from sessions_app.lanes import Hold
from sessions_app.models import Session, TranscriptEntry, Turn, lane_key_of
from sessions_app.pages import seal, unseal
from sessions_app.text import cut
from suzent_site.errors import Conflict, Invalid, NotFound
from suzent_site.faults import crash_point
from suzent_site.transactions import durable

TASK_ID = r"[0-9a-f]{1,64}"
TITLE_SHOWN = 80  # characters of a description that become the title where none is given


class Stopping(Conflict):
    """This session's turn has been asked to stop: it starts no sub-agents any more."""

    code = "stopping"


@dataclass(frozen=True)
class Wish:
    """What a call asks for, each field checked by itself. ``timeout``: seconds from its first try on."""

    description: str
    title: str = ""
    subagent_type: str = ""
    tools_allowed: list[str] | None = None
    tools_denied: list[str] | None = None
    run_in_background: bool = True
    inherit_context: bool = False
    model_override: str = ""
    runtime: str = ""
    cwd: str = ""
    isolation: str = ""
    timeout: float | None = None

    @property
    def options(self) -> dict[str, Any]:
        """What was asked for beside the description."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "") and name != "description"}


# --- spawn -----------------------------------------------------------------------------------------------------
def spawn(parent: Session, wish: Wish, *, now: datetime, hold: Hold | None = None, task_id: str = "") -> SubagentTask:
    """Make the child session, its task and the task's message in one transaction, or nothing.

    ``task_id``: of a turn that may be run again; it gets the first child then. ``hold``: the lane of the turn that calls.
    Raises Invalid, Stopping, SessionGone, TaskEnded, RateLimited, HopLimit, LeaseLost.
    """
    task_id = task_id or secrets.token_hex(12)
    cwd = _within_roots(parent, wish.cwd) if wish.cwd else ""
    inherited = _context_of(parent) if wish.inherit_context else []
    limits.senders.take(parent.project_id, f"session {parent.agent_id}")
    with durable():
        locked = lanes.lock([parent.lane_key])
        if hold is not None:
            lanes.prove(hold, locked)
        earlier = SubagentTask.objects.filter(task_id=task_id).first()
        if earlier is not None:
            return earlier
        _refuse_unless_goes_on(parent)
        task = _insert(parent, wish, task_id=task_id, cwd=cwd, inherited=inherited, now=now)
    crash_point("spawn.after_commit")
    return task


def _refuse_unless_goes_on(parent: Session) -> None:
    """Its lane is locked: whoever stops or archives it was here before, or will find the child."""
    if not Session.objects.open().filter(pk=parent.pk).exists():
        raise SessionGone
    if Turn.objects.running().stop_requested().filter(session=parent).exists():
        raise Stopping


def _insert(
    parent: Session, wish: Wish, *, task_id: str, cwd: str, inherited: list[turns.Entry], now: datetime
) -> SubagentTask:
    child = _found_child(parent, wish, task_id=task_id, cwd=cwd, now=now)
    turns.inherit(child, inherited, now=now)
    task = SubagentTask.objects.create(
        task_id=task_id, project=parent.project, parent=parent, child=child, description=wish.description,
        options=wish.options, created_at=now,
    )  # fmt: skip
    payload = {"task_id": task_id} | ({} if wish.timeout is None else {"timeout": wish.timeout})
    draft = Draft(
        project_id=parent.project_id, target=child, sender_id=parent.agent_id, kind=Message.Kind.SUBAGENT_TASK,
        content=wish.description, message_id=message_id_of(task), payload=payload, ours=True,
    )  # fmt: skip
    transitions.accept_with_target(draft, now=now)
    return task


def _found_child(parent: Session, wish: Wish, *, task_id: str, cwd: str, now: datetime) -> Session:
    agent_id = f"subagent-{task_id}"
    if Session.objects.filter(pk=agent_id).exists():
        raise TaskEnded  # so long ago that its task was purged
    config = profiles.config_for(
        parent, subagent_type=wish.subagent_type, tools_allowed=wish.tools_allowed, tools_denied=wish.tools_denied or [],
        model_override=wish.model_override, cwd=cwd, isolation=wish.isolation,
    )  # fmt: skip
    title = wish.title if wish.title.strip() else cut(wish.description.strip().partition("\n")[0].strip(), TITLE_SHOWN)
    return insert_session_of_ours(
        parent.project, agent_id, now=now, title=title, runtime=wish.runtime or parent.runtime, config=config,
        kind=Session.Kind.SUBAGENT, parent=parent,
    )  # fmt: skip


def message_id_of(task: SubagentTask) -> str:
    return f"subagent-task-{task.task_id}"


def message_of(task: SubagentTask) -> Message | None:
    """The message that carries the task; None once it was purged."""
    return Message.objects.filter(project=task.project_id, message_id=message_id_of(task)).first()


def _within_roots(parent: Session, cwd: str) -> str:
    """The directory itself, whatever links lead to it. Raises Invalid outside of the project's roots."""
    asked = Path(cwd)
    if not asked.is_absolute():
        raise Invalid("cwd", "must be an absolute path")
    try:
        meant = asked.resolve()
        allowed = any(meant.is_relative_to(Path(root).resolve()) for root in parent.project.roots)
    except (OSError, RuntimeError) as error:  # a name that is too long, links that go round in circles
        raise Invalid("cwd", "cannot be followed") from error
    if not allowed:
        raise Invalid("cwd", "must lie in one of the directories that this project allows (its roots)")
    return str(meant)


def _context_of(parent: Session) -> list[turns.Entry]:
    """The newest of the parent's visible transcript, as much as agent_read would show; each says where it comes from."""
    return [
        turns.Entry(
            TranscriptEntry.Role(line.role), line.text, [{"type": "inherited", "agent_id": parent.agent_id, "seq": line.seq}]
        )
        for line in transcripts.read(parent).lines
    ]


# --- stop ------------------------------------------------------------------------------------------------------
def stop_tasks(session: Session, below: list[str], *, who: str, archived: bool, now: datetime) -> int:
    """Settings name this as STOP_TASKS: ``session`` and all ``below`` it are being stopped, or ``session`` archived.

    A task that waits never starts: it is cancelled here. One that runs is cancelled by the end of its turn. How many
    were cancelled. A step; the lanes of all of them, and of the session's parent, are locked.
    """
    by = f"{'archived' if archived else 'stopped'} by {who or 'an operator'}"
    results.note_stop(below, by=by, target=session)
    waiting = Message.objects.pending().filter(
        lane__in=[lane_key_of(agent_id) for agent_id in below], kind=Message.Kind.SUBAGENT_TASK
    )
    if archived:
        waiting = waiting.exclude(session=session)  # its own mail fails as target_gone
    found = list(waiting.select_related("sender"))
    for message in found:
        transitions.withdraw_locked(message, who=who or "an operator", by_sender=False, now=now, reason=by)
    return len(found)


# --- reading ---------------------------------------------------------------------------------------------------
def brief(task: SubagentTask) -> dict[str, Any]:
    """What the call that gave the task answers."""
    return {
        "agent_id": task.child_id, "task_id": task.task_id, "status": task.status, "parent_agent_id": task.parent_id,
    }  # fmt: skip


def outcome(task: SubagentTask) -> dict[str, Any]:
    """What a call that waited answers, once the task has ended."""
    return {**brief(task), "result": task.result, "error": task.error}


def visible_to(caller: Caller) -> Any:
    """Given by the caller's session or to it; all of the project for its token; everything for operators."""
    tasks = SubagentTask.objects.select_related("child")
    if caller.project_id is not None:
        tasks = tasks.filter(project=caller.project_id)
    return tasks if caller.session is None else tasks.of(caller.session)


def task_named(caller: Caller, task_id: str) -> SubagentTask:
    """Raises NotFound, in the same words for foreign and missing ids."""
    if not re.fullmatch(TASK_ID, task_id):
        raise NotFound
    found: SubagentTask | None = visible_to(caller).filter(task_id=task_id).first()
    if found is None:
        raise NotFound
    return found


def page_of_tasks(
    caller: Caller, *, limit: int, cursor: str = "", status: str = "", agent_id: str = ""
) -> tuple[list[SubagentTask], str | None]:
    """The newest ``limit`` tasks from the cursor on, and the cursor of the next page or None."""
    tasks = visible_to(caller)
    if status:
        tasks = tasks.filter(status=status)
    if agent_id:
        tasks = tasks.of(agent_id)
    if cursor:
        tasks = tasks.filter(pk__lt=unseal("subagents", cursor)[0])
    found = list(tasks.order_by("-pk")[: limit + 1])
    page = found[:limit]
    return page, seal("subagents", page[-1].pk) if len(found) > limit else None
