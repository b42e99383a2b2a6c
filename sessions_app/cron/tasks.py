"""The django-q2 entry point. A task is a hint: it is safe to run twice, late or never."""

from __future__ import annotations

import structlog

from sessions_app.clock import database_now
from sessions_app.cron import scheduler

log = structlog.get_logger(__name__)


def tick() -> None:
    """Minutely: queue the cron runs that are due."""
    queued = scheduler.tick(now=database_now())
    if queued:
        log.info("cron_runs_queued", runs=queued)
