"""What the sweep mends: waiting mail that nobody would look at in time."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Exists, OuterRef, Q, Subquery

from inbox_app.models import Attempt, Intervention, Message
from inbox_app.querysets import MessageQuerySet
from sessions_app import lanes
from sessions_app.models import Lane
from suzent_site.transactions import durable

BACKS_OFF_AT_MOST = 1.5  # times the cap of the backoff, whose jitter is less


def repair_lanes(*, now: datetime) -> int:
    """Make due what waits where nobody would look in time: a lane without a due time, or one dated by a clock that ran ahead.

    Such a lane is due later than its head may run, or the head itself was dated so. One that backs off has its own time.
    """
    waiting = Message.objects.filter(lane=OuterRef("key"))
    ahead = _dated_ahead(now=now)
    head_may_run_at = Subquery(waiting.order_by("-status", "id").values("available_at")[:1])  # "processing" before "pending"
    backs_off = Q(failures__gt=0, due_at__lte=now + BACKS_OFF_AT_MOST * timedelta(seconds=settings.SUZENT_PEER_BACKOFF_CAP))
    is_late = Q(due_at__gt=head_may_run_at) | Exists(ahead.filter(lane=OuterRef("key")))
    with durable():
        stranded = Lane.objects.filter(Q(due_at=None) & Exists(waiting) | Q(due_at__gt=now, lease_owner=None) & is_late & ~backs_off)
        keys = list(stranded.locked().values_list("key", flat=True))
        ahead.filter(lane__in=keys).update(available_at=now)
        lanes.look_now(keys, now=now)
    return len(keys)


def _dated_ahead(*, now: datetime) -> MessageQuerySet:
    """Waiting for a time that was reckoned by a clock that ran ahead: when they were accepted, tried or redelivered."""
    tried = Attempt.objects.filter(message=OuterRef("pk"), finished_at__gt=now)
    redelivered = Intervention.objects.filter(message=OuterRef("pk"), at__gt=now)
    return Message.objects.unsettled().filter(Q(accepted_at__gt=now) | Exists(tried) | Exists(redelivered), available_at__gt=now)
