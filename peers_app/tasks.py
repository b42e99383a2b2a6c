"""The django-q2 entry points, and what queues them. A task is a hint: each is safe to run twice, late or never."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import structlog
from django_q.tasks import async_task

from peers_app import calls, pairing
from peers_app.models import DeviceGrant, Peer
from sessions_app.clock import database_now
from suzent_site.addresses import AddressRefused
from suzent_site.broker import quick_broker
from suzent_site.outbound import Unreachable

POLL_EVERY = 5.0  # seconds; design 9
AT_ONCE = 8  # calls side by side

log = structlog.get_logger(__name__)


class _Polled:
    """When this process queued the last poll (a reading of the monotonic clock)."""

    at = float("-inf")


def see_to_answers(*, now: datetime) -> None:
    """Called twice a second by the cluster's supervisor: while we ask a device for a grant, have it polled."""
    if time.monotonic() - _Polled.at >= POLL_EVERY and Peer.objects.asking().exists():
        _Polled.at = time.monotonic()
        async_task("peers_app.tasks.poll", broker=quick_broker())


def poll() -> None:
    """Ask every device that we wait for how our request stands."""
    waiting = list(Peer.objects.asking().select_related("project"))
    with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        answers = list(pool.map(lambda peer: calls.poll(peer.base_url, peer.request_id), waiting))
    for peer, polled in zip(waiting, answers, strict=True):
        pairing.answered(peer, polled, now=database_now())


def hint(device_id: str) -> None:
    """Tell a device, best effort, that its grant has changed."""
    grant = DeviceGrant.objects.filter(pk=device_id).first()
    try:
        if grant is not None and grant.callback_url:
            calls.hint(grant.callback_url)
    except (AddressRefused, Unreachable) as error:
        log.info("device_not_told", device_id=device_id, error=error.code)
