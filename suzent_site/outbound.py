"""The one door through which this product calls other machines.

Every call has its own connection, so that threads and forks share none, and: follows no redirect, uses no proxy, netrc
or cookie of its surroundings, asks for no compression, has a time-out to connect, one between two pieces of the answer
and one for everything, and reads no more than it was told to. The address is judged when it is resolved and that very
address is connected to, so a name cannot change in between. What is raised says whether the other side may have had
the request, and never carries a URL: a path may hold a token.
"""

from __future__ import annotations

import ipaddress
import json as json_format
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO, TypeVar

import requests
from requests.adapters import HTTPAdapter
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool
from urllib3.exceptions import HTTPError
from urllib3.exceptions import TimeoutError as PoolTimeout

from suzent_site.addresses import AddressRefused, Origin, Reach, check_address, check_url
from suzent_site.errors import SuzentError

T = TypeVar("T")

CHUNK = 16 * 1024  # bytes
BODY_LIMIT = 1024 * 1024  # bytes of an answer, unless the caller says otherwise
HEADER = re.compile(r"[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?|")


class Unreachable(SuzentError):
    """No whole answer came.

    ``maybe_sent``: the connection stood, so the other side may have had the request. ``answered``: an answer began.
    """

    code = "unreachable"
    status = 502

    def __init__(self, detail: str, *, maybe_sent: bool, answered: bool = False) -> None:
        super().__init__(detail)
        self.maybe_sent = maybe_sent
        self.answered = answered


class TooLarge(Unreachable):
    """The answer is larger than the caller takes."""

    code = "answer_too_large"


@dataclass(frozen=True)
class Timeouts:
    """In seconds. ``total`` bounds the whole call, but for the resolver, which has a time-out of its own."""

    connect: float = 5.0
    read: float = 15.0
    total: float = 30.0


DEFAULT_TIMEOUTS = Timeouts()


@dataclass(frozen=True)
class Answer:
    """A whole HTTP answer of any status. ``headers`` are found in any case of letters."""

    status: int
    headers: Mapping[str, str]
    body: bytes = b""

    def json(self) -> Any:
        """The body, read as JSON. Raises ValueError."""
        try:
            return json_format.loads(self.body.decode("utf-8"))
        except RecursionError as error:
            raise ValueError("nested too deeply") from error


def call(
    method: str,
    url: str,
    *,
    reach: Reach,
    json: Any = None,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
    limit: int = BODY_LIMIT,
) -> Answer:
    """Send a request with ``json`` or ``body`` and read the whole answer, at most ``limit`` bytes of body.

    Raises AddressRefused (nothing was sent), Unreachable, TooLarge.
    """
    read = bytearray()
    with _answer_to(method, url, reach=reach, headers=headers, timeouts=timeouts, content=_content(json, body)) as (answer, chunks):
        for chunk in chunks:
            read += chunk
            _refuse_above(limit, len(read))
    return Answer(answer.status, answer.headers, bytes(read))


def download(
    url: str,
    *,
    reach: Reach,
    to: BinaryIO,
    limit: int,
    headers: Mapping[str, str] | None = None,
    timeouts: Timeouts = DEFAULT_TIMEOUTS,
) -> Answer:
    """GET a file of at most ``limit`` bytes into ``to``. The answer has no body; one that is not 200 writes nothing.

    Raises AddressRefused (nothing was sent), Unreachable, TooLarge: then a part may have been written.
    """
    with _answer_to("GET", url, reach=reach, headers=headers, timeouts=timeouts) as (answer, chunks):
        size = 0
        for chunk in chunks if answer.status == 200 else ():
            size += len(chunk)
            _refuse_above(limit, size)
            to.write(chunk)
    return answer


def _content(json: Any, body: bytes | None) -> tuple[bytes | None, str]:
    if json is None:
        return body, ""
    return json_format.dumps(json).encode("ascii"), "application/json"


def _refuse_above(limit: int, size: int) -> None:
    if size > limit:
        raise TooLarge(f"The answer is larger than {limit} bytes.", maybe_sent=True, answered=True)


@contextmanager
def _answer_to(
    method: str,
    url: str,
    *,
    reach: Reach,
    headers: Mapping[str, str] | None,
    timeouts: Timeouts,
    content: tuple[bytes | None, str] = (None, ""),
) -> Iterator[tuple[Answer, Iterator[bytes]]]:
    """The head of the answer and the pieces of its body, which are to be read inside."""
    line = _Line(check_url(url, reach=reach), reach, timeouts)
    sent = _headers(headers or {}, content_type=content[1])
    adapter = _Adapter(line)
    with _deadline(line), requests.Session() as session:
        session.trust_env = False
        session.headers.clear()
        session.mount("http://", adapter)
        session.mount("https://", adapter)
        response = line.explained(lambda: session.request(
            method, url, data=content[0], headers=sent, timeout=(timeouts.connect, timeouts.read), allow_redirects=False,
            stream=True,
        ))  # fmt: skip
        line.answered = True
        with response:
            yield Answer(response.status_code, response.headers), _pieces(response, line)


def _headers(given: Mapping[str, str], *, content_type: str) -> dict[str, str]:
    """Raises AddressRefused for one that would break out of its line."""
    if any(not HEADER.fullmatch(text) for pair in given.items() for text in pair):
        raise AddressRefused("A header holds something else than printable ASCII characters.")
    ours = {"User-Agent": "Suzent", "Accept-Encoding": "identity"}
    return ours | ({"Content-Type": content_type} if content_type else {}) | dict(given)


def _pieces(response: requests.Response, line: _Line) -> Iterator[bytes]:
    raw = response.raw.stream(CHUNK, decode_content=False)
    while piece := line.explained(lambda: next(raw, b"")):
        yield piece


# --- The connection of one call --------------------------------------------------------------------------------
@dataclass
class _Line:
    """What is known of the one connection of a call, and the hand that cuts it when its time is up."""

    origin: Origin
    reach: Reach
    timeouts: Timeouts
    started: float = field(default_factory=time.monotonic)  # seconds
    connected: bool = False
    answered: bool = False
    late: bool = False
    _own: socket.socket | None = None  # a second handle: TLS moves the first one into an object of its own

    def open(self, name: str, port: int) -> socket.socket:
        """Connect to the first address of the name that may be called. Raises AddressRefused, Unreachable."""
        refusal: AddressRefused | None = None
        trouble = "it has no address"
        for family, address in self._resolved(name, port):
            try:
                check_address(ipaddress.ip_address(str(address[0]).partition("%")[0]), port, reach=self.reach)
                return self._connected(family, address)
            except AddressRefused as refused:
                refusal = refused
            except OSError as error:
                trouble = "time is up" if isinstance(error, TimeoutError) else error.strerror or "it failed"
                refusal = None
        raise refusal or self.failed(f"There is no connection to {self.origin}: {trouble}.")

    def _resolved(self, name: str, port: int) -> list[tuple[int, Any]]:
        try:
            found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError):
            raise self.failed(f"There is no connection to {self.origin}: the name cannot be looked up.") from None
        return [(family, address) for family, _, _, _, address in found]

    def _connected(self, family: int, address: Any) -> socket.socket:
        wire = socket.socket(family, socket.SOCK_STREAM)
        try:
            wire.settimeout(max(min(self.timeouts.connect, self._left()), 0.001))
            wire.connect(address)
            wire.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._own = wire.dup()
        except OSError:
            wire.close()
            raise
        if self.late:
            self.cut()
        return wire

    def _left(self) -> float:
        return self.started + self.timeouts.total - time.monotonic()

    def cut(self) -> None:
        """The time of the whole call is up: whoever waits for a byte gets an error at once."""
        self.late = True
        if self._own is not None:
            try:
                self._own.shutdown(socket.SHUT_RDWR)
            except OSError:  # it was closed in the meantime
                return

    def close(self) -> None:
        if self._own is not None:
            self._own.close()

    def explained(self, act: Callable[[], T]) -> T:
        """What ``act`` answers; what the libraries raise becomes Unreachable, in words without the URL."""
        try:
            found = act()
        except (requests.RequestException, HTTPError, OSError) as error:
            raise self.failed(self._why(error)) from None
        if self.late:
            raise self.failed(self._why(TimeoutError()))
        return found

    def failed(self, why: str) -> Unreachable:
        return Unreachable(why, maybe_sent=self.connected, answered=self.answered)

    def _why(self, error: Exception) -> str:
        if self.late:
            return f"{self.origin} took longer than {self.timeouts.total:g} seconds."
        if isinstance(error, requests.exceptions.SSLError):
            return f"{self.origin} did not prove by TLS who it is."
        if isinstance(error, requests.Timeout | PoolTimeout | TimeoutError):
            return f"{self.origin} did not answer within {self.timeouts.read:g} seconds."
        return f"The connection to {self.origin} broke before the answer was whole."


@contextmanager
def _deadline(line: _Line) -> Iterator[None]:
    """A read time-out alone would let a trickle of single bytes go on for ever."""
    timer = threading.Timer(line.timeouts.total, line.cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        line.close()


class _Plain(HTTPConnection):
    def __init__(self, *args: Any, line: _Line, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._line = line

    def _new_conn(self) -> socket.socket:
        return self._line.open(self._dns_host, self.port)

    def connect(self) -> None:
        super().connect()
        self._line.connected = True


class _Secure(HTTPSConnection):
    def __init__(self, *args: Any, line: _Line, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._line = line

    def _new_conn(self) -> socket.socket:
        return self._line.open(self._dns_host, self.port)

    def connect(self) -> None:
        super().connect()  # with the handshake of TLS: before it ends, nothing of ours is on its way
        self._line.connected = True


class _PlainPool(HTTPConnectionPool):
    ConnectionCls = _Plain


class _SecurePool(HTTPSConnectionPool):
    ConnectionCls = _Secure


class _Adapter(HTTPAdapter):
    """Has requests use the line of the call, and nothing that another call left behind."""

    def __init__(self, line: _Line) -> None:
        super().__init__(max_retries=0)
        self._line = line
        self._pool: HTTPConnectionPool | None = None

    def get_connection_with_tls_context(self, *args: Any, **kwargs: Any) -> HTTPConnectionPool:
        origin = self._line.origin
        pool = _SecurePool if origin.scheme == "https" else _PlainPool
        self._pool = pool(origin.host, origin.port, line=self._line)
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.close()
        super().close()
