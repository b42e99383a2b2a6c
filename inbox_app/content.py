"""What a message may hold: checked once, at the entrance, the same for every way in."""

from __future__ import annotations

import re

from inbox_app.models import CONTENT_LIMIT, MESSAGE_ID
from sessions_app.text import is_blank, refuse_unstorable
from suzent_site.errors import Invalid

OUR_PREFIXES = ("subagent-task-", "subagent-result-", "failure-", "remote-", "turn-")


def check_content(content: str, *, field: str = "message") -> None:
    """Raises Invalid unless it is 1 to CONTENT_LIMIT characters (code points) that somebody can see and a database keep."""
    refuse_unstorable(content, field=field)
    if len(content) > CONTENT_LIMIT:
        raise Invalid(field, f"must be at most {CONTENT_LIMIT} characters; it has {len(content)}")
    if is_blank(content):
        raise Invalid(field, "must not be blank")


def check_message_id(message_id: str, *, ours: bool = False, field: str = "message_id") -> None:
    """Raises Invalid unless it is empty (one is made) or a well-formed id outside our own prefixes."""
    if not message_id:
        return
    if not re.fullmatch(MESSAGE_ID, message_id):
        raise Invalid(field, "must be 1 to 128 of A-Z a-z 0-9 _ . : -")
    if not ours and message_id.startswith(OUR_PREFIXES):
        raise Invalid(field, f"must not begin with one of ours ({', '.join(OUR_PREFIXES)})")
