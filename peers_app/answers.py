"""What a peer's answer to our mail means. Pure: wire.md 4 says what acknowledges, 5.6 what is permanent."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from enum import Enum
from typing import Any

from inbox_app.models import Message
from sessions_app.text import cut, storable
from suzent_site.outbound import Answer, Unreachable

PERMANENT = frozenset({400, 409, 413, 422})
UNAUTHORISED = frozenset({401, 403})
BUSY = frozenset({429, 503})
# Of all others, these say that nothing was taken; a proxy's 502 or a 202 with a wrong body does not.
NOT_TAKEN = PERMANENT | UNAUTHORISED | {404, 405, 415, 429} | set(range(300, 400))
SAID_LIMIT = 300  # characters of what a peer says that are kept
STATUSES = ("pending", "processing", "delivered", "failed")  # no set: what a stranger sends may not be hashable


class Meaning(Enum):
    TAKEN = "taken"
    REFUSED = "refused"  # for good
    UNAUTHORISED = "unauthorised"
    BUSY = "busy"
    STRANGER = "stranger"  # not our peer at this address just now
    NONE = "none"  # no whole HTTP answer


@dataclass(frozen=True)
class Verdict:
    """``words``: for people, without anything that a database or a line cannot hold. ``retry_after``: seconds, if it asked for some.

    ``maybe_taken``: it may have taken the message and did not say so.
    """

    meaning: Meaning
    words: str
    told: dict[str, Any] = field(default_factory=dict)
    retry_after: float | None = None
    maybe_taken: bool = False

    @property
    def reason(self) -> Message.Reason:
        """Of a refusal."""
        return Message.Reason.HOP_LIMIT if self.told.get("error") == "hop_limit" else Message.Reason.REJECTED


def of_silence(error: Unreachable) -> Verdict:
    return Verdict(Meaning.NONE, error.detail, maybe_taken=error.maybe_sent)


def of_answer(answer: Answer, *, message_id: str, now: datetime) -> Verdict:
    told = object_in(answer)
    maybe = answer.status not in NOT_TAKEN
    if answer.status == 202 and told.get("accepted") is True and told.get("message_id") == message_id:
        return Verdict(Meaning.TAKEN, "", _kept(told))
    if answer.status in PERMANENT and isinstance(told.get("error"), str):
        return Verdict(Meaning.REFUSED, said(answer, told), told)
    if answer.status in UNAUTHORISED:
        return Verdict(Meaning.UNAUTHORISED, said(answer, told))
    if answer.status in BUSY:
        wait = seconds_in(answer.headers.get("Retry-After"), now=now)
        return Verdict(Meaning.BUSY, said(answer, told), retry_after=wait, maybe_taken=maybe)
    return Verdict(Meaning.STRANGER, f"{said(answer, told)}, which is not a peer's answer", maybe_taken=maybe)


def object_in(answer: Answer) -> dict[str, Any]:
    """The JSON object of the body; empty if it is none."""
    try:
        told = answer.json()
    except (ValueError, RecursionError):
        return {}
    return told if isinstance(told, dict) else {}


def said(answer: Answer, told: dict[str, Any]) -> str:
    """One harmless line."""
    error = told.get("error")
    words = cut(one_line(error), SAID_LIMIT) if isinstance(error, str) else ""
    return f"it answered {answer.status}" + (f": {words}" if words else "")


def one_line(text: str) -> str:
    return storable("".join(character if character.isprintable() else " " for character in text[: 2 * SAID_LIMIT]))


def seconds_in(header: str | None, *, now: datetime) -> float | None:
    """``Retry-After`` as seconds or as a date; None if it is neither."""
    if header is None:
        return None
    if header.strip().isascii() and header.strip().isdigit():
        return float(header.strip()[:9])
    try:
        moment = parsedate_to_datetime(header)
        return (moment - now).total_seconds()
    except (ValueError, TypeError, OverflowError):
        return None


def _kept(told: dict[str, Any]) -> dict[str, Any]:
    """How far the message is there: information, which decides nothing."""
    status = told.get("status")
    return {"status": status if status in STATUSES else "pending", "created": told.get("created") is not False}
