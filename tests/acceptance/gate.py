"""A door in front of a database or Redis server that a test can shut: to those behind it the server is down."""

from __future__ import annotations

import contextlib
import select
import socket
import threading


class Gate:
    """Passes on what comes to its own port while it is open."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self.is_open = False
        self.port = 0
        self.open()

    def open(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()
        self.is_open = True

    def shut(self) -> None:
        """Refuse new connections and break those there are."""
        assert self._listener
        self.is_open = False
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            for end in [end for pair in self._pairs for end in pair]:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._connect(client)

    def _connect(self, client: socket.socket) -> None:
        """With the server, or with nobody while that is down."""
        try:
            pair = client, socket.create_connection(self._server)
        except OSError:
            client.close()
            return
        with self._lock:
            self._pairs.append(pair)
        threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, client: socket.socket, server: socket.socket) -> None:
        with client, server, contextlib.suppress(OSError):
            while True:
                for end in select.select([client, server], [], [])[0]:
                    data = end.recv(65536)
                    if not data:
                        return
                    (server if end is client else client).sendall(data)
