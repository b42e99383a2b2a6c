"""What ``/readyz`` asks of this layer."""

from __future__ import annotations

from datetime import datetime, timedelta

from inbox_app.models import Wake
from inbox_app.wake import ANSWER
from sessions_app.clock import database_now
from suzent_site.transactions import durable

ANSWERED_WITHIN = timedelta(seconds=45)
TO_BE_HEARD = timedelta(seconds=15)  # in which any other cluster that is at work will have answered: see pings.PING_EVERY


def worker_answered() -> str:
    """Whether a worker of the cluster gave a sign of life lately; what is wrong if not."""
    answered: datetime | None = Wake.objects.filter(name=ANSWER).values_list("answered_at", flat=True).first()
    if answered is not None and abs(database_now() - answered) <= ANSWERED_WITHIN:
        return ""
    return f"no worker has answered within {ANSWERED_WITHIN.total_seconds():.0f} s; is the cluster running?"


def a_cluster_has_ended(*, now: datetime) -> None:
    """Let its last answer count for TO_BE_HEARD only: unless another cluster answers by then, nobody works."""
    forgotten = now - ANSWERED_WITHIN + TO_BE_HEARD
    with durable():
        Wake.objects.filter(name=ANSWER, answered_at__gt=forgotten).update(answered_at=forgotten)
