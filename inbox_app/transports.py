"""How a message reaches its target: one transport for each ``Message.transport``, named in settings TRANSPORTS.

The engine (accept, claim, settle, order, leases) is the same for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, ClassVar

from django.conf import settings
from django.utils.module_loading import import_string

from inbox_app.deliveries import Ended, Parcel, RemoteTarget
from inbox_app.models import Message
from sessions_app.authentication import Caller
from sessions_app.models import Lane
from sessions_app.querysets import REMOTE_PREFIX
from suzent_site.errors import NotFound


class Transport(ABC):
    """One way of delivery. ``attempts``: the charged tries of a message, and once more by a redelivery."""

    attempts: ClassVar[int]

    @abstractmethod
    def is_gone(self, message: Message) -> bool:
        """Whether its target can never get it."""

    def lifetime(self, asked: timedelta | None) -> timedelta | None:
        """How long after its acceptance it is worth trying; None for as long as it takes."""
        return asked


class Remote(Transport):
    """To agents on other machines. What the tools show of them is asked for live, and never stored."""

    @abstractmethod
    def deliver(self, parcel: Parcel) -> Ended:
        """One try, with no transaction open: whatever goes wrong in it is told by how it ended, and nothing is raised."""

    @abstractmethod
    def target(self, caller: Caller, agent_id: str) -> RemoteTarget:
        """Raises NotFound, in the same words for foreign and missing ones."""

    @abstractmethod
    def is_closed(self, target: RemoteTarget) -> bool:
        """Whether it takes no new mail. Asked with its lane locked."""

    @abstractmethod
    def listing(self, caller: Caller, *, active: bool, after: str, limit: int) -> Sequence[dict[str, Any]]:
        """Those that the caller can name, by address, from ``after`` on; what agent_list shows, but for ``unread``."""

    @abstractmethod
    def read(self, caller: Caller, agent_id: str, *, before: int | None, now: datetime) -> dict[str, Any]:
        """What agent_read answers. Raises NotFound and the errors of a call."""

    @abstractmethod
    def stop(self, caller: Caller, agent_id: str, *, now: datetime) -> bool:
        """Ask its running turn to stop. False: none was running. Raises NotFound and the errors of a call."""

    @abstractmethod
    def obstacles(self, message: Message, *, lane: Lane, now: datetime) -> list[str]:
        """What a pending message waits for, in words."""


def of(message: Message) -> Transport:
    return named(message.transport)


def named(name: str) -> Transport:
    transport: Transport = _at(settings.TRANSPORTS[name])
    return transport


def delivered_by(parcel: Parcel) -> Ended:
    """Have the transport of the parcel try it once."""
    transport = of(parcel.message)
    if not isinstance(transport, Remote):
        raise TypeError(f"message {parcel.message.pk} has no session here")
    return transport.deliver(parcel)


def remote() -> Remote | None:
    """The transport to other machines, if this installation has one."""
    path = settings.TRANSPORTS.get(Message.Transport.SUZENT_PEER)
    return _at(path) if path else None


def remote_for(agent_id: str) -> Remote | None:
    """The transport of this address; None: it is local. Raises NotFound where nothing leads there."""
    if not agent_id.startswith(REMOTE_PREFIX):
        return None
    found = remote()
    if found is None:
        raise NotFound
    return found


@cache
def _at(path: str) -> Any:
    return import_string(path)()
