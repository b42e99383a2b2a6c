"""Where a message comes from, as its target sees it: a structured header that only the server writes."""

from __future__ import annotations

from typing import Any

from inbox_app.models import Message
from sessions_app.transcripts import PROVENANCE


def header(message: Message) -> dict[str, Any]:
    """The part that goes with the target's user entry. The content itself stays unchanged beside it."""
    sender = message.sender
    return {
        "type": PROVENANCE,
        "message_id": message.message_id,
        "kind": message.kind,
        "sender": sender.agent_id if sender else None,
        "sender_title": sender.title if sender else "",
        "sender_kind": sender.kind if sender else None,
        "sender_label": message.sender_label,
        "in_reply_to": message.in_reply_to or None,
        "hops": message.hops,
        "accepted_at": message.accepted_at.isoformat(),
        **({"task": message.payload} if message.kind == Message.Kind.SUBAGENT_RESULT else {}),
    }
