"""This installation as other machines know it: one identity, whatever its address."""

from __future__ import annotations

import secrets
import socket
from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import Q

from peers_app.models import IDENTITY_LENGTH, NAME_LENGTH, Installation
from suzent_site.transactions import durable

THE_ONE = 1
CHECKS_EVERY = timedelta(seconds=10)  # wire.md 5.8
ANY_ADDRESS = {"0.0.0.0", "::", ""}
LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def node_identity() -> str:
    """32 hexadecimal digits, the same for all processes and hosts that share the database."""
    found = Installation.objects.filter(pk=THE_ONE).values_list("identity", flat=True).first()
    if found is None:
        with durable():
            found = locked().identity
    return found


def locked() -> Installation:
    """The row, locked: what only one process may do at a time. A step of the caller's transaction."""
    Installation.objects.get_or_create(pk=THE_ONE, defaults={"identity": secrets.token_hex(IDENTITY_LENGTH // 2)})
    return Installation.objects.select_for_update().get(pk=THE_ONE)


def may_check(*, now: datetime) -> bool:
    """Whether a hint may begin a round of checks now: one in 10 s, over all processes."""
    node_identity()
    due = Q(checked_at=None) | Q(checked_at__lte=now - CHECKS_EVERY) | Q(checked_at__gt=now)
    with durable():
        return Installation.objects.filter(due, pk=THE_ONE).update(checked_at=now) == 1


def device_name() -> str:
    """What others see of us."""
    return (settings.SUZENT_DEVICE_NAME or socket.gethostname())[:NAME_LENGTH]


def our_address(*, seen_from: str) -> str:
    """Where a machine whose host is ``seen_from`` reaches us; empty if nobody listens for it."""
    if settings.SUZENT_PUBLIC_URL:
        return str(settings.SUZENT_PUBLIC_URL).rstrip("/")
    host = settings.SUZENT_HOST
    if host in LOOPBACK and seen_from not in LOOPBACK:
        return ""
    if host in ANY_ADDRESS:
        host = "127.0.0.1" if seen_from in LOOPBACK else _address_towards(seen_from)
    in_url = f"[{host}]" if ":" in host else host
    return f"http://{in_url}:{settings.SUZENT_PORT}" if host else ""


def _address_towards(host: str) -> str:
    """Which of our addresses a packet to there would leave from; none leaves."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError:
        return ""
