"""Every call to a peer of ours on its channel (wire.md 3), one function each. No database here."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from inbox_app.models import CONTENT_LIMIT
from peers_app.answers import UNAUTHORISED, object_in, said
from peers_app.wire import HOPS_HEADER
from sessions_app.models import TranscriptEntry
from sessions_app.text import cut, storable
from suzent_site import outbound
from suzent_site.addresses import Reach
from suzent_site.errors import SuzentError
from suzent_site.outbound import Answer, Timeouts

DELIVERY = Timeouts(connect=5, read=15, total=20)
LIVE = Timeouts(connect=3, read=8, total=10)  # an agent waits for it
PROBE = Timeouts(connect=2, read=4, total=5)
ANSWER_LIMIT = 64 * 1024  # bytes
TRANSCRIPT_LIMIT = 1024 * 1024  # bytes: 20,000 characters, as JSON may spell them, and what is around them
ENTRIES_AT_MOST = 2_000


class TurnedAway(SuzentError):
    """The peer does not take our token."""

    code = "peer_revoked"
    status = 409


class NotAPeer(SuzentError):
    """What answers at the peer's address is not a peer."""

    code = "peer_unavailable"
    status = 503


class NothingRuns(SuzentError):
    """Nothing of ours is running there."""

    code = "not_active"
    status = 409


@dataclass(frozen=True)
class Line:
    """Where a peer is, and the token that it gave us."""

    base_url: str
    token: str = field(repr=False)

    def send(self, message_id: str, content: str, *, hops: int) -> Answer:
        """``POST inbox``: any HTTP answer. Raises AddressRefused, Unreachable."""
        body = {"message_id": message_id, "content": content}
        return self._call("POST", "inbox", json=body, timeouts=DELIVERY, headers={HOPS_HEADER: str(hops)})

    def whoami(self) -> str:
        """What we are called there. Raises AddressRefused, Unreachable, TurnedAway, NotAPeer."""
        told = self._told("GET", "whoami", timeouts=PROBE)
        if "peer_id" in told and told["peer_id"] is None:  # so says 0.9.1 where it trusts the caller otherwise
            raise TurnedAway
        if told.get("ok") is not True or not isinstance(told.get("peer_id"), str):
            raise NotAPeer
        return str(told["peer_id"])

    def conversation(self) -> Conversation:
        """``GET session``. Raises AddressRefused, Unreachable, TurnedAway, NotAPeer."""
        return _conversation(self._told("GET", "session", timeouts=LIVE, limit=TRANSCRIPT_LIMIT))

    def stop(self) -> None:
        """``POST stop``. Raises AddressRefused, Unreachable, TurnedAway, NotAPeer, NothingRuns."""
        if self._told("POST", "stop", timeouts=LIVE, also={409: NothingRuns}).get("stopped") is not True:
            raise NotAPeer

    def _told(self, method: str, path: str, *, also: dict[int, type[SuzentError]] | None = None, **options: Any) -> dict[str, Any]:
        answer = self._call(method, path, **options)
        told = object_in(answer)
        if answer.status in UNAUTHORISED:
            raise TurnedAway
        if answer.status != 200 or not told:
            raise (also or {}).get(answer.status, NotAPeer)(self.without_token(f"At the peer's address {said(answer, told)}."))
        return told

    def _call(self, method: str, path: str, *, headers: dict[str, str] | None = None, limit: int = ANSWER_LIMIT, **options: Any) -> Answer:
        sent = {"Authorization": f"Bearer {self.token}", **(headers or {})}
        return outbound.call(method, f"{self.base_url}/channels/suzent/{path}", reach=Reach.OPERATOR, headers=sent, limit=limit, **options)

    def without_token(self, text: str) -> str:
        """What a machine says may repeat what it was sent: no token gets into an error."""
        return text.replace(self.token, "…")


@dataclass(frozen=True)
class Entry:
    """A line of the conversation there, as agent_read shows one. ``created_at``: None where it does not say when."""

    seq: int
    role: str
    text: str
    created_at: str | None


@dataclass(frozen=True)
class Conversation:
    """Our session there: at most CONTENT_LIMIT characters, the newest; ``omitted``: how many older entries are not here."""

    active: bool
    entries: list[Entry]
    count: int
    omitted: int
    truncated: bool

    def before(self, seq: int) -> Conversation:
        """As far as it is here: a peer has no older pages."""
        kept = [entry for entry in self.entries if entry.seq < seq]
        return Conversation(self.active, kept, self.count, self.omitted, self.truncated)


def _conversation(told: dict[str, Any]) -> Conversation:
    """Raises NotAPeer. What is odd within a line is mended; a line that is none is left out."""
    lines = told.get("messages")
    if not isinstance(lines, list) or told.get("status") not in ("active", "idle"):
        raise NotAPeer
    whole = [entry for number, line in enumerate(lines[-ENTRIES_AT_MOST:]) if (entry := _entry(line, number)) is not None]
    entries = _newest(whole)
    left_out = len(whole) - len(entries)
    return Conversation(
        active=told["status"] == "active", entries=entries, count=_number(told.get("message_count"), len(whole)),
        omitted=_number(told.get("omitted_message_count"), 0) + left_out,
        truncated=told.get("transcript_truncated") is True or left_out > 0,
    )  # fmt: skip


def _entry(line: Any, number: int) -> Entry | None:
    if not isinstance(line, dict) or not isinstance(line.get("text"), str):
        return None
    role = line.get("role")
    known = role if role in TranscriptEntry.Role.values else TranscriptEntry.Role.SYSTEM.value
    return Entry(_number(line.get("index"), number), str(known), storable(line["text"]), _moment(line.get("timestamp")))


def _newest(entries: list[Entry]) -> list[Entry]:
    """The last ones that fit into CONTENT_LIMIT characters together; the newest is cut if it alone does not."""
    room, kept = CONTENT_LIMIT, list[Entry]()
    for entry in reversed(entries):
        if len(entry.text) > room and kept:
            break
        kept.insert(0, Entry(entry.seq, entry.role, cut(entry.text, CONTENT_LIMIT), entry.created_at))
        room -= len(entry.text)
    return kept


def _number(value: Any, otherwise: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62 else otherwise


def _moment(value: Any) -> str | None:
    """ISO 8601 in UTC; also of seconds since 1970."""
    try:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return _spelled(datetime.fromtimestamp(value, UTC))
        if isinstance(value, str) and re.match(r"[0-9]{4}-", value, re.ASCII):
            moment = datetime.fromisoformat(value)
            return _spelled(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
    except (ValueError, OverflowError, OSError):
        return None
    return None


def _spelled(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat().replace("+00:00", "Z")
