"""What is to be done with the head of a lane: the order of judgement at a claim. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from django.conf import settings

from inbox_app.models import Message

SOLITARY_LOSSES = 3  # tries in a process of its own that died with it; one loss before them was in company


class Verdict(StrEnum):
    DELIVERED = "delivered"  # its marker is there: only the acknowledgement was missing
    STOPPED = "stopped"  # a stop was asked for while its turn ran
    FAIL = "fail"
    WAIT = "wait"  # not before its available_at
    RUN = "run"


@dataclass(frozen=True)
class Judgement:
    verdict: Verdict
    reason: Message.Reason | None = None
    error: str = ""


def given_up(message: Message) -> Judgement:
    """Its time is over: that which its sender gave it, or all that there is for mail to another machine."""
    horizon = timedelta(seconds=settings.SUZENT_PEER_HORIZON)
    if _is_remote(message) and message.valid_until is not None and message.valid_until - message.accepted_at >= horizon:
        why = f"the peer did not take it within {horizon}" + (f"; last: {message.last_error}" if message.last_error else "")
        return Judgement(Verdict.FAIL, Message.Reason.EXHAUSTED, why)
    if message.is_timed:
        return Judgement(Verdict.FAIL, Message.Reason.TIMEOUT, time_out_words(message))
    return Judgement(Verdict.FAIL, Message.Reason.EXPIRED, "its validity ended before a turn could start")


def _is_remote(message: Message) -> bool:
    return message.transport == Message.Transport.SUZENT_PEER


@dataclass(frozen=True)
class Evidence:
    """What the claim found beside the row."""

    marked: bool
    stop_requested: bool
    archived: bool


def judge(message: Message, evidence: Evidence, *, now: datetime) -> Judgement:
    """The first rule that applies decides: marker, stop, archived, expired, used up; else it runs."""
    if evidence.marked:
        return Judgement(Verdict.STOPPED if evidence.stop_requested else Verdict.DELIVERED)
    if evidence.stop_requested:
        return Judgement(Verdict.STOPPED)
    if evidence.archived:
        return Judgement(Verdict.FAIL, Message.Reason.TARGET_GONE, "the target is archived")
    if message.valid_until is not None and message.valid_until <= now:
        return given_up(message)
    if message.losses > SOLITARY_LOSSES:
        return Judgement(Verdict.FAIL, Message.Reason.WORKER_DIED, message.last_error)
    if message.attempts >= message.max_attempts:
        return Judgement(Verdict.FAIL, Message.Reason.EXHAUSTED, message.last_error)
    return Judgement(Verdict.RUN if message.available_at <= now else Verdict.WAIT)


def time_out_words(message: Message) -> str:
    return f"it did not end within {message.payload.get('timeout', 0):g} s of its start"
