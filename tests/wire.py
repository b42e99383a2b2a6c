"""A server of raw bytes on a real socket: it records all it is sent, and answers as badly as a test wants."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

Behave = Callable[[socket.socket, bytes], object]


@dataclass
class Wire:
    """``heard``: the bytes of each connection, in the order in which they came."""

    behave: Behave
    listener: socket.socket
    tls: bool = False
    heard: list[bytes] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    @property
    def port(self) -> int:
        return self.listener.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:  # closed: the test is over
                return
            threading.Thread(target=self._converse, args=(connection,), daemon=True).start()

    def _converse(self, connection: socket.socket) -> None:
        with connection:
            connection.settimeout(10)
            try:
                request = b"" if self.tls else request_from(connection)
                self.heard.append(request)
                self.behave(connection, request)
            except OSError:  # the caller went away, as some tests want it
                return


@contextmanager
def wire(behave: Behave, *, host: str = "127.0.0.1", port: int = 0, tls: bool = False) -> Iterator[Wire]:
    """``tls``: the first bytes are left to ``behave``, which speaks TLS over them."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(64)
        served = Wire(behave, listener, tls)
        thread = threading.Thread(target=served.serve, daemon=True)
        thread.start()
        try:
            yield served
        finally:
            served.released.set()
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)


def request_from(connection: socket.socket) -> bytes:
    """Head and body of one request, or what came of it before the caller went away."""
    read = b""
    while not is_whole(read):
        piece = connection.recv(65536)
        if not piece:
            break
        read += piece
    return read


def is_whole(request: bytes) -> bool:
    head, blank, body = request.partition(b"\r\n\r\n")
    length = re.search(rb"(?i)\r\ncontent-length: *([0-9]+)", head)
    return bool(blank) and len(body) >= (int(length[1]) if length else 0)


def answer(status: int, body: bytes = b"", *headers: str, length: int | None = None) -> bytes:
    """``length``: what the head claims of the body, where that is not the truth."""
    claimed = len(body) if length is None else length
    head = [f"HTTP/1.1 {status} Something", f"Content-Length: {claimed}", *headers]
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body


def answers(*answer_of: object, **more: object) -> Behave:
    whole = answer(*answer_of, **more)
    return lambda connection, request: connection.sendall(whole)
