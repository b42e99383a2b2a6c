"""Devices on the local network by mDNS (extra ``discovery``): this one is announced, others are found.

Anybody on the network may announce anything. What is found is an address that an operator may ask, never more.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

import structlog
from django.conf import settings
from django.db import DatabaseError

from peers_app import installation
from peers_app.base_url import base_url_of, host_of, is_never_called
from peers_app.models import NAME_LENGTH, Peer
from sessions_app.text import cut, storable
from suzent_site.errors import Conflict, Invalid, first_line

try:
    import zeroconf
    from zeroconf.asyncio import AsyncServiceBrowser, AsyncServiceInfo, AsyncZeroconf
except ImportError:  # the extra is not installed
    zeroconf = None  # type: ignore[assignment]

TYPE = "_suzent-node._tcp.local."  # as Suzent 0.9.1 announces itself, which calls its name display_name
NAME, IDENTITY = b"display_name", b"node_identity"
IDENTITY_FORM = re.compile(r"[0-9a-f]{32}")
NAME_BYTES = 200  # of the 255 that an entry of a TXT record holds
LISTENED = 3.0  # seconds, unless the caller says otherwise: a device may wait a second before it answers
LIMIT = 100  # announcements that are looked at, and addresses that are told
ANSWER_WITHIN = 1000  # milliseconds that a device has for its details, all of them at once

log = structlog.get_logger(__name__)
_announcing: zeroconf.Zeroconf | None = None


class NoDiscovery(Conflict):
    """Finding devices needs the extra discovery: uv sync --extra discovery."""

    code = "no_discovery"


class NotLookedAround(Conflict):
    """The local network cannot be asked."""

    code = "network_refused"


@dataclass(frozen=True, order=True)
class Found:
    """An address that somebody announced. ``name`` and ``node_identity`` are claims; ``known``: a peer has this address."""

    name: str
    address: str
    node_identity: str
    known: bool


# --- being found -------------------------------------------------------------------------------------------------
def announce() -> None:
    """At the web server's start. What goes wrong is a warning and not the server's end."""
    global _announcing  # noqa: PLW0603  # one a process
    try:
        _announcing = _announced(_our_service())
    except (OSError, DatabaseError, zeroconf.Error, NotLookedAround) as error:
        log.warning("not_announced", error=first_line(error))


def fall_silent() -> None:
    """At the web server's end: the others are told, and the thread of the announcement ends."""
    global _announcing
    network, _announcing = _announcing, None
    if network is not None:
        network.close()


def _our_service() -> zeroconf.ServiceInfo:
    """Named by the identity, which is a valid label whatever the device's name is. Raises NotLookedAround."""
    identity = installation.node_identity()
    addresses = _where_we_listen()
    if not addresses:
        raise NotLookedAround("This machine has no address that other machines reach.")
    name = installation.device_name().encode("utf-8", "replace")[:NAME_BYTES].decode("utf-8", "ignore")
    return zeroconf.ServiceInfo(
        TYPE, f"suzent-{identity[:12]}.{TYPE}", port=settings.SUZENT_PORT, parsed_addresses=addresses,
        properties={NAME: name, IDENTITY: identity},
    )  # fmt: skip


def _where_we_listen() -> list[str]:
    host = settings.SUZENT_HOST
    if host == "0.0.0.0":  # we only ask whether the operator opened it
        addresses: Collection[str] = settings.SUZENT_DISCOVERY_INTERFACES or zeroconf.get_all_addresses()  # type: ignore[attr-defined]  # re-exported without a word
    elif host == "::":
        addresses = [address for (address, _, _), _ in zeroconf.get_all_addresses_v6()]  # type: ignore[attr-defined]
    else:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    return sorted(address for address in addresses if _leads_to_us(address))


def _leads_to_us(address: str) -> bool:
    parsed = ip_address(address.partition("%")[0])
    return not (parsed.is_loopback or parsed.is_link_local or parsed.is_unspecified)


def _announced(service: zeroconf.ServiceInfo) -> zeroconf.Zeroconf:
    with ExitStack() as undo:
        network = zeroconf.Zeroconf(interfaces=_interfaces())
        undo.callback(network.close)
        network.register_service(service, allow_name_change=True)
        undo.pop_all()
    log.info("announced", service=service.name, addresses=service.parsed_addresses(), port=service.port)
    return network


def _interfaces() -> list[str] | zeroconf.InterfaceChoice:
    """Raises OSError, if one is not of this machine: zeroconf would do so as well, and leave a socket open."""
    for address in settings.SUZENT_DISCOVERY_INTERFACES:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    return settings.SUZENT_DISCOVERY_INTERFACES or zeroconf.InterfaceChoice.All


# --- finding -----------------------------------------------------------------------------------------------------
def find(*, seconds: float = LISTENED) -> list[Found]:
    """Listen for so long, whether we are announced or not. Raises NoDiscovery, NotLookedAround."""
    if zeroconf is None:
        raise NoDiscovery
    try:
        heard = asyncio.run(_heard(seconds))
    except (OSError, zeroconf.Error) as error:
        raise NotLookedAround(f"The local network cannot be asked: {first_line(error)}.") from error
    return found_in(heard)


async def _heard(seconds: float) -> list[zeroconf.ServiceInfo]:
    names: dict[str, None] = {}

    def note(*, name: str, **_: Any) -> None:
        if len(names) < LIMIT:
            names[name] = None

    async with AsyncZeroconf(interfaces=_interfaces()) as network:
        browser = AsyncServiceBrowser(network.zeroconf, TYPE, handlers=[note])
        await asyncio.sleep(seconds)
        await browser.async_cancel()
        services = [service for name in names if (service := _named(name)) is not None]
        await asyncio.gather(*(service.async_request(network.zeroconf, ANSWER_WITHIN) for service in services))
    return list(services)


def _named(name: str) -> AsyncServiceInfo | None:
    """None: it is not a name that a service of ours can have."""
    try:
        return AsyncServiceInfo(TYPE, name)
    except zeroconf.BadTypeInNameException:
        return None


def found_in(services: Iterable[zeroconf.ServiceInfo]) -> list[Found]:
    """What strangers announce, in the form that the rest of the product can bear; without ourselves."""
    known = set(Peer.objects.exclude(state=Peer.State.OFF).values_list("base_url", flat=True))
    ours = installation.node_identity()
    told = {
        Found(_name(service), address, identity, known=address in known)
        for service in services
        if (identity := _identity(service)) != ours
        for address in _addresses(service)
    }
    return sorted(told)[:LIMIT]


def _name(service: zeroconf.ServiceInfo) -> str:
    return cut(_text(service, NAME).strip() or storable(service.name.removesuffix(f".{TYPE}")), NAME_LENGTH)


def _identity(service: zeroconf.ServiceInfo) -> str:
    identity = _text(service, IDENTITY)
    return identity if IDENTITY_FORM.fullmatch(identity) else ""


def _text(service: zeroconf.ServiceInfo, key: bytes) -> str:
    return storable((service.properties.get(key) or b"").decode("utf-8", "replace"))


def _addresses(service: zeroconf.ServiceInfo) -> Iterator[str]:
    """Those that a device may be asked at: the network's word never leads to this machine, nor to link-local addresses."""
    for host in service.parsed_addresses()[:LIMIT]:
        try:
            address = base_url_of(f"{_in_url(host)}:{service.port}", field="address")
        except Invalid:
            continue
        if not ip_address(host_of(address)).is_loopback and not is_never_called(address):
            yield address


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
