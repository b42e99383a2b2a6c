"""What the operating system knows: who runs, on which host, since when; and how a child ends with its parent."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import sys
import threading
import time
from functools import cache
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LINUX = sys.platform == "linux"
_PROC = Path("/proc")
_forked_by = 0  # the process that is about to fork; see inherit_death_with_parent


@cache
def this_host() -> str:
    """Names the space in which a pid means something: the host and, in a container, its own pid namespace."""
    try:
        namespace = os.readlink(_PROC / "self" / "ns" / "pid")
    except OSError:
        return socket.gethostname()
    return f"{socket.gethostname()} {namespace}"


@cache
def boot_id() -> str:
    """Different after every boot of the machine; empty where the system does not tell."""
    return _text_of(_PROC / "sys" / "kernel" / "random" / "boot_id").strip()


def uptime() -> float:
    """Seconds since boot, suspended ones included; nobody can set this clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def process_started(pid: int) -> int:
    """When the process started, in clock ticks since boot; 0 where it is gone or the system does not tell."""
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def state_of(pid: int) -> str:
    """The letter the kernel shows (R, S, D, T stopped, Z ended but not yet reaped), or nothing."""
    fields = _stat(pid)
    return fields[0] if fields else ""


def is_running(pid: int, started: int) -> bool:
    """Whether that very process still runs: a pid alone may have been given to another meanwhile."""
    if not _LINUX:
        return _answers_to(pid)
    return process_started(pid) == started and state_of(pid) not in {"", "Z", "X"}


def descendants(pid: int) -> frozenset[int]:
    """Every process below this one that still runs. Empty where the system does not tell."""
    found: set[int] = set()
    waiting = [pid]
    while waiting:
        below = children(waiting.pop())
        waiting += below
        found |= below
    return frozenset(found)


def children(pid: int) -> frozenset[int]:
    """The processes that this one forked (or adopted) and that still run. Empty where the system does not tell."""
    return frozenset(child for child in _children(pid) if state_of(child) not in {"", "Z", "X"})


def die_with_parent(parent: int) -> None:
    """From now on this process is killed as soon as ``parent`` has ended, at once if it already has.

    Linux does it by itself (PR_SET_PDEATHSIG); elsewhere a thread looks once a second.
    """
    if _LINUX:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_outlive_no, args=(parent,), daemon=True).start()
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)


def inherit_death_with_parent() -> None:
    """Make every process that is forked below this one die with the one that forked it."""
    os.register_at_fork(before=_remember_who_forks, after_in_child=_die_with_who_forked)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies, so that one can wait for all of them."""
    if _LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def reap() -> dict[int, int]:
    """Collect every child that has ended: its pid and exit code (negative: the signal that killed it)."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if not pid:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


class Bell:
    """A sleep that the signals it listens for end. It remembers whether it was asked to stop."""

    def __init__(self) -> None:
        self.stop_asked = False
        self._reader, writer = os.pipe()
        for end in (self._reader, writer):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, self._note)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._note_stop)

    def sleep(self, seconds: float, *, also: tuple[int, ...] = ()) -> list[int]:
        """Wait so long, or until a signal comes or one of the files in ``also`` can be read; those are returned."""
        ready, _, _ = select.select([self._reader, *also], [], [], seconds)
        if self._reader in ready:
            os.read(self._reader, 4096)
        return [file for file in ready if file != self._reader]

    def _note(self, number: int, frame: FrameType | None) -> None:
        """The byte in the pipe has ended the sleep already."""

    def _note_stop(self, number: int, frame: FrameType | None) -> None:
        self.stop_asked = True

    @staticmethod
    def leave_to_child() -> None:
        """In a child just forked: signals are its own again."""
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)


def _stat(pid: int) -> list[str]:
    """The fields of /proc/<pid>/stat after the name, which may hold blanks and brackets itself."""
    return _text_of(_PROC / str(pid) / "stat").rpartition(")")[2].split()


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _children(pid: int) -> list[int]:
    """Of all its threads: the kernel lists children by the thread that forked them."""
    threads = _PROC / str(pid) / "task"
    try:
        lists = [threads / thread / "children" for thread in os.listdir(threads)]
    except OSError:
        return []
    return [int(child) for file in lists for child in _text_of(file).split()]


def _answers_to(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl refused")


def _outlive_no(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)


def _remember_who_forks() -> None:
    global _forked_by  # noqa: PLW0603  # the child reads what its parent wrote just before the fork
    _forked_by = os.getpid()


def _die_with_who_forked() -> None:
    die_with_parent(_forked_by)
