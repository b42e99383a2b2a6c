"""A PostgreSQL and a Redis of our own, which may be shot: the machine's serve others too."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path

from suzent_site.processes import die_with_parent
from tests.acceptance.conftest import free_port

STARTS_WITHIN = 60  # seconds; PostgreSQL repairs itself after a crash


class Server:
    """A server process in a directory of its own. Start and restart it from one thread: it dies with that."""

    user: str | None = None

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="suzent-chaos-"))
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def is_there(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True, cwd=self.folder,
                preexec_fn=partial(die_with_parent, os.getpid()), **({"user": self.user, "extra_groups": []} if self.user else {}),
            )
        give_up_at = time.monotonic() + STARTS_WITHIN
        while not self.is_there():
            assert time.monotonic() < give_up_at, (self.folder / "log").read_text()
            time.sleep(0.05)

    def stop(self, number: signal.Signals = signal.SIGKILL) -> None:
        if self._process:
            self._process.send_signal(number)
            self._process.wait()

    def end(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)


class Postgres(Server):
    CRASH, FAST = signal.SIGQUIT, signal.SIGINT

    def __init__(self) -> None:
        super().__init__()
        if os.geteuid() == 0:  # PostgreSQL does not run as root
            self.user = "postgres"
            shutil.chown(self.folder, "postgres", "postgres")
        self.data = self.folder / "pg"
        subprocess.run(
            [_binary("initdb"), "-D", self.data, "-U", "postgres", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale", "C"],
            check=True, capture_output=True, cwd=self.folder, **({"user": self.user, "extra_groups": []} if self.user else {}),
        )

    @property
    def url(self) -> str:
        return f"postgres://postgres@127.0.0.1:{self.port}/postgres"

    def command(self) -> list[str]:
        return [_binary("postgres"), "-D", str(self.data), "-p", str(self.port), "-k", str(self.folder), "-h", "127.0.0.1"]

    def is_there(self) -> bool:
        return subprocess.run([_binary("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False).returncode == 0


class Redis(Server):
    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def command(self) -> list[str]:
        return ["redis-server", "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]


def _binary(name: str) -> str:
    """Debian keeps the server's programs off the PATH."""
    installed = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[-3]))
    found = shutil.which(name) or (str(installed[-1]) if installed else "")
    assert found, f"{name} is not installed"
    return found
