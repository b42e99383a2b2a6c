"""Reading a transcript within bounds. Reading never writes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sessions_app.models import Session, TranscriptEntry

READ_LIMIT = 20_000  # characters of text in one page
PROVENANCE = "provenance"  # the type of the part that says where a user entry comes from; only the server writes it
ENTRY_LIMIT = 1_000  # entries in one page, should they be empty


@dataclass(frozen=True)
class Line:
    """``thread``: for an entry that a message made, its ``message_id``, ``sender`` and ``in_reply_to``; else empty."""

    seq: int
    role: str
    text: str
    created_at: datetime
    thread: dict[str, Any]


@dataclass(frozen=True)
class Page:
    """``lines`` in transcript order; ``omitted`` older ones are left out; ``truncated`` if any is, or one was cut."""

    lines: list[Line]
    count: int
    omitted: int
    truncated: bool


def read(session: Session, *, before: int | None = None) -> Page:
    """The newest visible entries (older than ``before``) that fit into the limit."""
    older = TranscriptEntry.objects.filter(session=session, visible=True, **({} if before is None else {"seq__lt": before}))
    newest_first = older.order_by("-seq").only("seq", "role", "text", "created_at", "parts")[:ENTRY_LIMIT]
    lines, cut = _fitting(_line(entry) for entry in newest_first.iterator(chunk_size=50))
    last_seq = Session.objects.values_list("last_seq", flat=True).get(pk=session.pk)
    omitted = _visible_up_to(lines[0].seq - 1, session) if lines else 0
    return Page(lines=lines, count=_visible_up_to(last_seq, session), omitted=omitted, truncated=cut or omitted > 0)


def _visible_up_to(seq: int, session: Session) -> int:
    """Positions have no gaps, so only the hidden ones are counted: reading costs the same at entry 100 and 1,000,000."""
    return seq - TranscriptEntry.objects.filter(session=session, visible=False, seq__lte=seq).count()


def is_header(part: Any) -> bool:
    """Whether this part of an entry is the server's word on where it comes from."""
    return isinstance(part, dict) and part.get("type") == PROVENANCE


def _line(entry: TranscriptEntry) -> Line:
    header: dict[str, Any] = next(filter(is_header, entry.parts), {})
    thread = {name: header.get(name) for name in ("message_id", "sender", "in_reply_to")} if header else {}
    return Line(entry.seq, entry.role, entry.text, entry.created_at, thread)


def _fitting(newest_first: Iterable[Line]) -> tuple[list[Line], bool]:
    """In transcript order; True if the only one was too long and had to be cut."""
    lines: list[Line] = []
    room = READ_LIMIT
    for line in newest_first:
        if len(line.text) > room:
            return ([_cut(line)], True) if not lines else (lines[::-1], False)
        room -= len(line.text)
        lines.append(line)
    return lines[::-1], False


def _cut(line: Line) -> Line:
    note = f"\n[cut: this entry has {len(line.text)} characters]"
    return replace(line, text=line.text[: READ_LIMIT - len(note)] + note)
