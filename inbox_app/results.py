"""How a sub-agent's task moves and ends, and what its parent is told: the only writer of ``SubagentTask.status``.

All are steps: the caller's transaction has locked the lanes of child and parent. Who moves a task out of queued or
running gets the result to send; for everybody later it has ended, and there is nothing to send.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from inbox_app.deliveries import Draft
from inbox_app.models import CONTENT_LIMIT, Message, SubagentTask
from sessions_app.models import Session
from sessions_app.text import cut, is_blank, storable

WAIT_LIMIT = 60  # seconds that a call that waits for its task waits at most
REASON_LIMIT = 500  # characters of a reason in the first line of a result
NOTE_LIMIT = 400  # characters
STOPPED = "its turn was asked to stop"
ARCHIVED = "it was archived"

Status = SubagentTask.Status


@dataclass(frozen=True)
class Ending:
    """``reason``: why it did not complete; empty if it did."""

    status: Status
    result: str = ""
    reason: str = ""


def completed(result: str) -> Ending:
    return Ending(Status.COMPLETED, result=storable(result))


def stopped(result: str = "") -> Ending:
    return Ending(Status.CANCELLED, result=storable(result), reason=STOPPED)


def failed(reason: Message.Reason, error: str) -> Ending:
    """What the failure of a task's message means for the task."""
    if reason == Message.Reason.WITHDRAWN:
        return Ending(Status.CANCELLED, reason=storable(error))
    if reason == Message.Reason.TARGET_GONE:
        return Ending(Status.CANCELLED, reason=ARCHIVED)
    if reason == Message.Reason.TIMEOUT:
        return Ending(Status.TIMED_OUT, reason=storable(error))
    return Ending(Status.FAILED, reason=storable(f"{reason}: {error}" if error else str(reason)))


def begin(message: Message, *, now: datetime) -> None:
    """The first try of a task has begun."""
    SubagentTask.objects.filter(child=message.session_id, status=Status.QUEUED).update(status=Status.RUNNING, started_at=now)


def end(message: Message, ending: Ending, *, now: datetime) -> Draft | None:
    """End the task of this message: the result to send to its parent. None: it had ended, or the parent is archived."""
    task = SubagentTask.objects.unended().filter(child=message.session_id).select_related("parent__project").first()
    if task is None:
        return None
    told = _with_note(ending, task)
    ended = SubagentTask.objects.unended().filter(pk=task.pk).update(
        status=told.status, result=told.result, error=told.reason, ended_at=now
    )
    is_gone = task.parent.archived_at is not None or task.parent.project.archived_at is not None
    return _result_of(task, told, message=message, now=now) if ended and not is_gone else None


def _with_note(ending: Ending, task: SubagentTask) -> Ending:
    """A task that was stopped ends with the words of who stopped it."""
    if ending.status != Status.CANCELLED or not task.stop_note:
        return ending
    return Ending(ending.status, result=ending.result, reason=task.stop_note)


def _result_of(task: SubagentTask, ending: Ending, *, message: Message, now: datetime) -> Draft:
    return Draft(
        project_id=task.project_id, target=task.parent, sender_id=str(message.session_id), kind=Message.Kind.SUBAGENT_RESULT,
        message_id=f"subagent-result-{task.task_id}", content=result_text(task.task_id, ending), in_reply_to=message.message_id,
        payload={"task_id": task.task_id, "status": ending.status, "answered": _is_waited_for(task, now=now)}, ours=True,
    )  # fmt: skip


def _is_waited_for(task: SubagentTask, *, now: datetime) -> bool:
    """Whether the call that gave the task is still waiting, and so answers with this result too."""
    in_background = task.options.get("run_in_background", True)
    return not in_background and now <= task.created_at + timedelta(seconds=WAIT_LIMIT)


def result_text(task_id: str, ending: Ending) -> str:
    """How it ended in the first line, then the whole result, or as much of it as fits and where the rest is."""
    is_empty = is_blank(ending.result)
    how = ending.reason or ("empty" if is_empty else "ok")
    first = f"{ending.status}: {cut(' '.join(how.split()), REASON_LIMIT)}"
    if is_empty:
        return first
    rest = f"\n[cut: the result has {len(ending.result)} characters; the whole is at GET /api/subagents/{task_id}]"
    return cut(f"{first}\n{ending.result}", CONTENT_LIMIT, note=rest)


def note_stop(sessions: list[str], *, by: str, target: Session) -> None:
    """Remember of the unended tasks of these sessions who asked for a stop; the first one counts."""
    unnoted = SubagentTask.objects.unended().filter(child__in=sessions, stop_note="")
    unnoted.filter(child=target).update(stop_note=cut(by, NOTE_LIMIT))
    unnoted.exclude(child=target).update(stop_note=cut(f"its parent was {by}", NOTE_LIMIT))
