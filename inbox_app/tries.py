"""Whether a message has a try left. A step of ``release``."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import Max

from inbox_app.deliveries import Setback
from inbox_app.judgement import SOLITARY_LOSSES, given_up
from inbox_app.models import Intervention, Message

DEFERRED_AT_MOST = timedelta(hours=24)  # that a message without a validity waits for an unavailable runtime


def used_up(message: Message, setback: Setback, *, now: datetime) -> Message.Reason | None:
    """Why it is not tried again after this; None if it is."""
    if message.is_timed and message.valid_until is not None:
        return Message.Reason.TIMEOUT if message.valid_until <= now else _used_up_by_tries(message, setback)
    if setback.deferred and setback.retry_at >= _deferrable_until(message):
        return given_up(message).reason
    return _used_up_by_tries(message, setback)


def _used_up_by_tries(message: Message, setback: Setback) -> Message.Reason | None:
    if setback.died_alone and message.losses + 1 > SOLITARY_LOSSES:
        return Message.Reason.WORKER_DIED
    if setback.charged and message.attempts + 1 >= message.max_attempts:
        return Message.Reason.TIMEOUT if setback.timed_out else Message.Reason.EXHAUSTED
    return None


def _deferrable_until(message: Message) -> datetime:
    """How long an unavailable runtime is waited for: its validity, else a day from when it was last accepted."""
    if message.valid_until is not None:
        return message.valid_until
    redelivered = message.interventions.filter(verb=Intervention.Verb.REDELIVER).aggregate(last=Max("at"))["last"]
    return (redelivered or message.accepted_at) + DEFERRED_AT_MOST
