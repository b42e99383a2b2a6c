"""What is remembered of a message when its text is gone: enough to tell whether its id came again with other content."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest_of(*, sender: str | None, target: str, kind: str, content: str, payload: dict[str, Any]) -> str:
    """The same for what is sent, for its row, its delivery marker and its dedupe key.

    Of a device's mail the content alone counts: paired anew, the device sends the same message to another session of its own.
    """
    of_device = kind == "remote_agent_message"
    parts = json.dumps([kind, content] if of_device else [sender or "", target, kind, content, payload], sort_keys=True)
    return hashlib.sha256(parts.encode("ascii")).hexdigest()
