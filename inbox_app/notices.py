"""The words of a failure notice: what a sender reads in its own inbox when a message of its fails for good."""

from __future__ import annotations

from typing import Any

from inbox_app.models import CONTENT_LIMIT, Message
from sessions_app.text import cut, storable


def notice_id(message: Message) -> str:
    """One notice a failure: a message that fails again after a redelivery is told again."""
    return f"failure-{message.pk}-{message.redeliveries}"


def wants_notice(message: Message, *, withdrawn_by_sender: bool) -> bool:
    """Whether its sender is told. Not about a notice, nor of its own withdrawal, nor of a task (its result says it)."""
    return (
        message.sender is not None
        and message.sender.archived_at is None
        and message.kind not in {Message.Kind.DELIVERY_FAILURE, Message.Kind.SUBAGENT_TASK}
        and not withdrawn_by_sender
    )


def notice_text(message: Message, *, reason: Message.Reason, error: str) -> str:
    """At most CONTENT_LIMIT characters."""
    what = "may have arrived, but nobody said so" if message.maybe_delivered else "was not delivered"
    text = f"Your message {message.message_id} to {message.target} {what}: {WORDS[reason]}."
    if error:
        text += f"\nReason: {reason}. Last error: {error}"
    return cut(storable(text), CONTENT_LIMIT)


def notice_payload(message: Message, *, reason: Message.Reason) -> dict[str, Any]:
    return {"message_id": message.message_id, "agent_id": message.target, "reason": reason}


WORDS = {
    Message.Reason.EXHAUSTED: "every attempt failed (exhausted)",
    Message.Reason.EXPIRED: "its validity ended before its turn could start (expired)",
    Message.Reason.WITHDRAWN: "an operator withdrew it (withdrawn)",
    Message.Reason.REJECTED: "the target refused it (rejected)",
    Message.Reason.TARGET_GONE: "the target is archived (target_gone)",
    Message.Reason.WORKER_DIED: "it killed the process that ran it, every time (worker_died)",
    Message.Reason.TIMEOUT: "its turn did not end in time (timeout)",
    Message.Reason.HOP_LIMIT: "the chain of agents that wake each other is too long (hop_limit)",
}
