"""Child processes of ``manage.py up``: started again when they die, their output in one log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from django.conf import settings

from suzent_site.processes import Bell, adopt_orphans, descendants, reap

FIRST_PAUSE = 0.5  # seconds until a child that died is started again; doubled each time …
LONGEST_PAUSE = 10.0  # … up to this
LONG_LIFE = 20.0  # seconds; a child that lived so long begins again with the first pause

Say = Callable[[str, str], None]  # (who, line)


class Child:
    """One ``manage.py`` command, and when it is to be started next."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._process: subprocess.Popen[bytes] | None = None
        self.output, self._write_end = os.pipe()
        os.set_blocking(self.output, False)
        self._pause = FIRST_PAUSE
        self._started_at = 0.0
        self._start_at = 0.0
        self._half_line = b""

    @property
    def pid(self) -> int:
        """0 while it does not run."""
        return self._process.pid if self._process else 0

    def start_if_due(self) -> None:
        if not self._process and time.monotonic() >= self._start_at:
            self._started_at = time.monotonic()
            self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, str(Path(settings.BASE_DIR) / "manage.py"), self.name, "--parent", str(os.getpid())]
        return subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=self._write_end, stderr=self._write_end, start_new_session=True
        )

    def note_end(self, *, exit_code: int) -> float:
        """It has ended and was reaped. The seconds until it is to be started again."""
        if self._process:
            self._process.returncode = exit_code  # or the module would wait for a pid that is no longer ours
        if time.monotonic() - self._started_at >= LONG_LIFE:
            self._pause = FIRST_PAUSE
        pause, self._pause = self._pause, min(self._pause * 2, LONGEST_PAUSE)
        self._process, self._start_at = None, time.monotonic() + pause
        return pause

    def lines(self) -> list[str]:
        """The whole lines it has written since the last call."""
        try:
            text = self._half_line + os.read(self.output, 65536)
        except BlockingIOError:
            return []
        *whole, self._half_line = text.split(b"\n")
        return [line.decode("utf-8", errors="replace") for line in whole]


class Family:
    """All children, from their start to the end of the last descendant."""

    def __init__(self, names: Iterable[str], *, say: Say) -> None:
        adopt_orphans()
        self.children = [Child(name) for name in names]
        self.say = say

    def join(self, name: str) -> None:
        """One more child from now on, unless it is there already."""
        if name not in {child.name for child in self.children}:
            self.children.append(Child(name))

    def step(self, bell: Bell, *, seconds: float) -> None:
        """Start who is due, pass on what they write for so long, and note who has ended."""
        for child in self.children:
            child.start_if_due()
        self._listen(bell, seconds=seconds)
        ended = reap()
        for child in self.children:
            if child.pid in ended:
                self._start_again(child, exit_code=ended[child.pid])

    def _start_again(self, child: Child, *, exit_code: int) -> None:
        pid = child.pid
        pause = child.note_end(exit_code=exit_code)
        self.say("up", f"{child.name} ({pid}) has ended with {exit_code}; it is started again in {pause:g} s")

    def end(self, bell: Bell, *, patience: float) -> None:
        """Ask the children to stop and wait for every descendant; past ``patience`` seconds kill what is left."""
        for child in self.children:
            if child.pid:
                _send(child.pid, signal.SIGTERM)
        give_up_at = time.monotonic() + patience
        while _has_descendants():
            self._listen(bell, seconds=0.1)
            if time.monotonic() >= give_up_at:
                self._kill_all()
        self._listen(bell, seconds=0)

    def _listen(self, bell: Bell, *, seconds: float) -> None:
        by_output = {child.output: child for child in self.children}
        for output in bell.sleep(seconds, also=tuple(by_output)):
            for line in by_output[output].lines():
                self.say(by_output[output].name, line)

    def _kill_all(self) -> None:
        for pid in descendants(os.getpid()):
            _send(pid, signal.SIGKILL)


def _has_descendants() -> bool:
    """Orphans count too: they have become our children. Collects those that have ended."""
    reap()
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
