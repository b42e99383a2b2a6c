"""What is remembered of a message when its text is gone: enough to tell whether its id came again with other content."""

from __future__ import annotations

import hashlib
import json
from typing import Any


def digest_of(*, sender: str | None, target: str, kind: str, content: str, payload: dict[str, Any]) -> str:
    """The same for what is sent, for its row, its delivery marker and its dedupe key."""
    parts = json.dumps([sender or "", target, kind, content, payload], sort_keys=True)
    return hashlib.sha256(parts.encode("ascii")).hexdigest()
