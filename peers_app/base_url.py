"""The address of a device in its one spelling: ``http(s)://host[:port]``, so that one device is not added twice."""

from __future__ import annotations

import ipaddress
import re

from peers_app.models import URL_LENGTH
from suzent_site.addresses import DEFAULT_PORTS, AddressRefused, Origin, Reach, check_url, origin_of
from suzent_site.errors import Invalid

PLAIN = {"ws": "http", "wss": "https", "http": "http", "https": "https"}
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)


def base_url_of(text: str, *, field: str) -> str:
    """``host:port``, ``http(s)://…`` or ``ws(s)://…`` in the one spelling. Raises Invalid, naming ``field``.

    Paths, queries, user info and fragments are refused: two of them could lead to one device, or to another. Whether the
    address may be called is another question.
    """
    if len(text) > URL_LENGTH:
        raise Invalid(field, f"must be at most {URL_LENGTH} characters")
    scheme, rest = _split(text.strip(" "), field=field)
    host_and_port = rest.removesuffix("/")
    if not host_and_port or any(char in host_and_port for char in "/?#@"):
        raise Invalid(field, "must be a host with a port if need be: no path, query, user name or fragment")
    try:
        return _spelled(origin_of(f"{scheme}://{host_and_port}"))
    except AddressRefused as refused:
        raise Invalid(field, refused.detail) from refused


def is_never_called(url: str) -> bool:
    """Whether not even an operator's word would have it called, as far as its spelling tells: this installation, metadata."""
    try:
        check_url(url, reach=Reach.OPERATOR)
    except AddressRefused:
        return True
    return False


def host_of(url: str) -> str:
    """Raises AddressRefused."""
    return origin_of(url).host


def _split(text: str, *, field: str) -> tuple[str, str]:
    found = _SCHEME.fullmatch(text)
    if found is None:
        return "http", text
    scheme = PLAIN.get(found[1].lower())
    if scheme is None:
        raise Invalid(field, "must begin with http:// or https://")
    return scheme, found[2]


def _spelled(origin: Origin) -> str:
    host = origin.host
    try:
        host = str(ipaddress.ip_address(host))
    except ValueError:
        host = host.lower()
    in_url = f"[{host}]" if ":" in host else host
    port = "" if origin.port == DEFAULT_PORTS[origin.scheme] else f":{origin.port}"
    return f"{origin.scheme}://{in_url}{port}"
