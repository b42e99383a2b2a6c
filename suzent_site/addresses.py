"""Which addresses this installation calls: judged as spelled, and again as resolved, at the moment of connecting."""

from __future__ import annotations

import ipaddress
import re
import socket
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar
from urllib.parse import urlsplit

from django.conf import settings

from suzent_site.errors import SuzentError

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

DEFAULT_PORTS = {"http": 80, "https": 443}
URL_LIMIT = 2_000  # characters
# Where clouds tell a machine its secrets, beside link-local 169.254.169.254: AWS over IPv6, Alibaba, Oracle.
METADATA = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "192.0.0.192")))
# Each carries an IPv4 address inside and would reach it past the rules for that: mapped, compatible, 6to4, Teredo.
DISGUISED = [ipaddress.ip_network(net) for net in ("::ffff:0:0/96", "::/96", "2002::/16", "2001::/32", "64:ff9b:1::/48")]
SELF = ipaddress.ip_address("::1")  # not is_loopback: from 3.13 on, Python says that of a disguised 127.0.0.1 too
NAT64 = ipaddress.ip_network("64:ff9b::/96")  # in daily use on networks without IPv4, so judged by what is inside
SITE_LOCAL = ipaddress.ip_network("fec0::/10")  # Python counts these old private addresses as public
NUMBER = re.compile(r"([0-9]+|0[xX][0-9a-fA-F]*)", re.ASCII)
UNSAFE = re.compile(r"[\x00-\x20\x7f-\xa0\\]")  # controls and blanks break a request line, a backslash confuses parsers


class Reach(Enum):
    """Whose word the address is, and so how far it may lead."""

    PUBLIC = "public"  # somebody else's: public addresses only
    OPERATOR = "operator"  # an operator typed or approved it: loopback and private ones too


class AddressRefused(SuzentError):
    """This installation does not call that address."""

    code = "address_refused"
    status = 400
    maybe_sent: ClassVar[bool] = False
    answered: ClassVar[bool] = False


@dataclass(frozen=True)
class Origin:
    """Where a URL leads: ``host`` in small letters and without brackets."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"


def check_url(url: str, *, reach: Reach) -> Origin:
    """The place it leads to, if the URL as spelled may be called; a name is judged when it is resolved.

    Raises AddressRefused: it is not http or https, or has user info, a fragment, blanks, line breaks, an odd number for
    a host, or an address out of reach.
    """
    origin = origin_of(url)
    if (address := _literal(origin.host)) is not None:
        check_address(address, origin.port, reach=reach)
    return origin


def check_address(address: IPAddress, port: int, *, reach: Reach) -> None:
    """Raises AddressRefused, if a connection to there is out of reach."""
    inner = _inside_nat64(address)
    why = _never_called(inner) or (_not_public(inner) if reach is Reach.PUBLIC else "")
    if not why and port == settings.SUZENT_PORT and _is_ours(address):
        why = "is this installation itself"
    if why:
        raise AddressRefused(f"{address} {why}.")


def origin_of(url: str) -> Origin:
    """Where the URL leads as it is spelled, whether it may be called or not. Raises AddressRefused."""
    if len(url) > URL_LIMIT or UNSAFE.search(url):
        raise AddressRefused(f"A URL has at most {URL_LIMIT} characters, and no blanks, control characters or backslashes.")
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        raise AddressRefused("That is no URL.") from None
    if parts.scheme not in DEFAULT_PORTS:
        raise AddressRefused("A URL begins with http:// or https://.")
    if "@" in parts.netloc or "#" in url:
        raise AddressRefused("A URL has no user name and no # in it here.")
    if not host or port == 0 or "%" in host or _is_odd_number(host):
        raise AddressRefused("A URL has a host name or an IP address in it, and a port from 1 to 65535 if any.")
    return Origin(parts.scheme, _in_ascii(host), port or DEFAULT_PORTS[parts.scheme])


def _is_odd_number(host: str) -> bool:
    """``2130706433``, ``0x7f.1``: resolvers read these as IPv4 addresses, people and filters do not."""
    last = host.rpartition(".")[2]
    return bool(NUMBER.fullmatch(last)) and _literal(host) is None


def _in_ascii(host: str) -> str:
    try:
        return host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError:
        raise AddressRefused("The host name of the URL cannot be looked up.") from None


def _literal(host: str) -> IPAddress | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _inside_nat64(address: IPAddress) -> IPAddress:
    return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF) if address in NAT64 else address


def _never_called(address: IPAddress) -> str:
    if address.is_unspecified:
        return "names no machine"
    if address.is_link_local or address in METADATA:
        return "is link-local or a cloud's metadata service"
    if address.is_multicast:
        return "is a multicast address"
    if address != SELF and any(address in network for network in DISGUISED):
        return "hides an IPv4 address"
    return "is reserved" if address.is_reserved and address.version == 4 else ""


def _not_public(address: IPAddress) -> str:
    return "" if address.is_global and address not in SITE_LOCAL else "is not a public address"


def _is_ours(address: IPAddress) -> bool:
    """An address of this very machine: what is sent to there would leave from there."""
    if address.is_loopback:
        return True
    family = socket.AF_INET6 if address.version == 6 else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))  # only looks into the routing table: no packet leaves
        except OSError:
            return False
        return bool(probe.getsockname()[0] == str(address))
