"""What ``/readyz`` asks of this layer."""

from __future__ import annotations

from datetime import datetime, timedelta

from inbox_app.models import Wake
from inbox_app.wake import ANSWER

ANSWERED_WITHIN = timedelta(seconds=45)


def worker_answered(*, now: datetime) -> str:
    """Whether a worker of the cluster gave a sign of life lately; what is wrong if not."""
    answered: datetime | None = Wake.objects.filter(name=ANSWER).values_list("answered_at", flat=True).first()
    if answered is not None and abs(now - answered) <= ANSWERED_WITHIN:
        return ""
    return f"no worker has answered within {ANSWERED_WITHIN.total_seconds():.0f} s; is the cluster running?"
