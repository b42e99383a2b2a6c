"""What was refused, and why: counted a channel and reason, one line in the log each."""

from __future__ import annotations

from datetime import datetime

import structlog
from django.db import IntegrityError, OperationalError
from django.db.models import F

from sessions_app.models import SocialRefusal
from suzent_site.transactions import durable

log = structlog.get_logger(__name__)


def count(channel: str, reason: str, *, now: datetime) -> None:
    """A database that cannot be written just now keeps its count, and the event is refused all the same."""
    log.warning("social_event_refused", channel=channel, reason=reason)
    try:
        _count(channel, reason, now=now)
    except IntegrityError:  # another process made the row in the same instant
        _add_one(channel, reason, now=now)
    except OperationalError as error:
        log.warning("social_refusal_not_counted", channel=channel, error=type(error).__name__)


def _count(channel: str, reason: str, *, now: datetime) -> None:
    with durable():
        if not _add_one(channel, reason, now=now):
            SocialRefusal.objects.create(channel_id=channel, reason=reason, count=1, last_at=now)


def _add_one(channel: str, reason: str, *, now: datetime) -> bool:
    rows = SocialRefusal.objects.filter(channel=channel, reason=reason)
    return rows.update(count=F("count") + 1, last_at=now) == 1
