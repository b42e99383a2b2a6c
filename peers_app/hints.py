"""Telling a device that its grant has changed: a hint, sent in the background, that may get lost (wire.md 4)."""

from __future__ import annotations

from functools import partial

import structlog
from django.db import transaction
from django_q.tasks import async_task

from suzent_site.broker import BROKER_ERRORS, quick_broker

log = structlog.get_logger(__name__)


def tell(device_id: str) -> None:
    """Have it told once this transaction is committed. Nobody waits for it, and no error of it reaches anybody."""
    transaction.on_commit(partial(_queue, device_id), robust=True)


def _queue(device_id: str) -> None:
    try:
        async_task("peers_app.tasks.hint", device_id, broker=quick_broker())
    except BROKER_ERRORS as error:
        log.warning("device_not_told", device_id=device_id, error=type(error).__name__)
