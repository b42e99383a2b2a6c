"""What a driver makes of a platform's event, and the session that it belongs to."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

TEXT_LIMIT = 20_000  # characters, as for every message
ID_LIMIT = 128  # characters of a sender's, target's or event's id
HASHED = "sha256-"  # what an id begins with that does not fit into an address


@dataclass(frozen=True)
class Attachment:
    """A file that came with an event. ``name`` is what its sender calls it, a label only.

    ``source`` is for the driver that fetches it; ``size`` in bytes, where the platform tells.
    """

    name: str
    media_type: str = ""
    size: int | None = None
    source: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class IncomingEvent:
    """``platform`` is the channel's name. ``target_id``: the chat, thread or room; ``reply_route``: where answers go."""

    platform: str
    event_id: str
    sender_id: str
    sender_name: str
    target_id: str
    text: str
    received_at: datetime
    reply_route: Mapping[str, Any] = field(default_factory=dict)
    attachments: tuple[Attachment, ...] = ()
    is_bot: bool = False

    @property
    def session_id(self) -> str:
        return f"social-{self.platform}-{_fitting(self.target_id, most=64)}"

    @property
    def key(self) -> str:
        """Names the event among all of its session's, as marker and as the id of what its turn handles."""
        return f"{self.platform}:{_fitting(self.event_id, most=90)}"

    @property
    def is_direct(self) -> bool:
        """Whether nobody else reads the answer, as far as the ids tell."""
        return self.target_id == self.sender_id

    @property
    def digest(self) -> str:
        return hashlib.sha256(f"{self.sender_id}\n{self.text}".encode()).hexdigest()


def _fitting(given: str, *, most: int) -> str:
    """``given`` where it fits into an address, else its digest; two different ones never become the same."""
    if re.fullmatch(rf"[A-Za-z0-9_.:-]{{1,{most}}}", given) and not given.startswith(HASHED):
        return given
    return HASHED + hashlib.sha256(given.encode()).hexdigest()[:40]
