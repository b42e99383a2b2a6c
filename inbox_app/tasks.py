"""The django-q2 entry points. A task is a hint: each is safe to run twice, late or never."""

from __future__ import annotations

import structlog
from django.conf import settings

from inbox_app import retention, transitions, wake
from inbox_app.models import Wake
from inbox_app.shift import run_shift
from sessions_app.clock import database_now
from suzent_site.processes import this_host
from suzent_site.transactions import durable

log = structlog.get_logger(__name__)


def dispatch() -> None:
    """Run a shift, unless it would take the last free worker: schedules and other tasks always run."""
    if wake.living_shifts(now=database_now()).filter(host=this_host()).count() < settings.SUZENT_WORKERS - 1:
        run_shift()
    else:
        wake.taken(wake.DISPATCH)


def sweep() -> None:
    """Minutely: fail what expired, repair what should not happen, remove some of what is old."""
    swept = transitions.sweep(now=database_now())
    if swept.expired or swept.repaired:
        log.info("swept", expired=swept.expired, repaired=swept.repaired)
    wake.wake()
    purged = retention.purge_a_portion(now=database_now())
    if any(purged.gone.values()):
        log.info("purged", complete=purged.complete, **purged.gone)


def answer() -> None:
    """Say that a worker lives."""
    with durable():
        Wake.objects.filter(name=wake.ANSWER).update(queued_at=None, answered_at=database_now())
