"""Turns of suspects, each in a process of its own: if it dies, it takes nobody along.

A nursery process is forked once per worker, before the worker has threads; it stays single-threaded and forks a keeper
for each suspect in a few milliseconds, in a session of its own, and the keeper forks the child: so a child that kills
its parent or its process group reaches no other's. The child gets one end of a socket pair: it says its pid, then how
the turn ended; an end of file without that means that it died. Whoever is left without a parent ends at once.
"""

from __future__ import annotations

import array
import os
import pickle
import select
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from django.db import connections

from inbox_app.deliveries import Doable, Ended
from inbox_app.dispatcher import run_and_commit
from suzent_site.processes import die_with_parent

_FRAME: Final = 1 << 20  # bytes; larger than any pickled Work or Ended: a message holds 20,000 characters
_LOOK_EVERY: Final = 0.1  # seconds between looks for a stop request to pass on
_STOP: Final = b"stop"


class NurseryGone(RuntimeError):
    """The nursery process has ended; this worker can run no suspect any more."""


@dataclass(frozen=True)
class Died:
    """The child ended without an answer."""

    how: str


class Nursery:
    """The process that forks a child for each suspect."""

    def __init__(self) -> None:
        connections.close_all()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._born_of = os.getpid()
        self._pid = os.fork()
        if self._pid == 0:
            try:
                _keep_nursery(theirs, self._control, parent=self._born_of)
            finally:
                os._exit(1)  # whatever happens: there must not be a second one of our caller
        theirs.close()

    def usable(self) -> bool:
        """Whether it is this process's own nursery and still runs."""
        if self._born_of != os.getpid():
            return False
        with suppress(ChildProcessError):
            return os.waitpid(self._pid, os.WNOHANG) == (0, 0)
        return False

    def close(self) -> None:
        """It ends, and each of its children with it."""
        self._control.close()

    def run(self, work: Doable, stop: threading.Event, *, seconds: float) -> Ended | Died | None:
        """Run the turn in a child. None: it did not end in time and was killed. Raises NurseryGone."""
        mine, childs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with mine:
            self._ask(childs, work)
            return _attend(mine, stop, seconds=seconds)

    def _ask(self, childs: socket.socket, work: Doable) -> None:
        with childs, self._lock:
            try:
                _send_with(self._control, pickle.dumps(work), childs.fileno())
            except OSError as error:
                raise NurseryGone from error


def _attend(child: socket.socket, stop: threading.Event, *, seconds: float) -> Ended | Died | None:
    pid, told = 0, False
    looks = max(int(seconds / _LOOK_EVERY), 1)
    for _ in range(looks):
        if stop.is_set() and not told:
            told = _tell_to_stop(child)
        if not select.select([child], [], [], _LOOK_EVERY)[0]:
            continue
        answer = _received(child)
        if not answer:
            return Died(f"its process {pid} ended without an answer")
        said = pickle.loads(answer)  # from our own child over a private socket pair
        if isinstance(said, Ended):
            return said
        pid = said
    if pid:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    return None


def _tell_to_stop(child: socket.socket) -> bool:
    with suppress(OSError):
        child.send(_STOP)
    return True


def _received(child: socket.socket) -> bytes:
    with suppress(ConnectionError):
        return child.recv(_FRAME)
    return b""


def _send_with(control: socket.socket, frame: bytes, descriptor: int) -> None:
    control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _FRAME)
    control.sendmsg([frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))])


# --- In the nursery and its children: these functions never return ----------------------------------------------
def _keep_nursery(control: socket.socket, parents: socket.socket, *, parent: int) -> None:
    die_with_parent(parent)
    parents.close()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # children are reaped by the kernel
    while True:
        frame, descriptors, _, _ = socket.recv_fds(control, _FRAME, 1)
        if not frame:
            os._exit(0)
        nursery = os.getpid()
        if os.fork() == 0:
            control.close()
            _keep_child(frame, socket.socket(fileno=descriptors[0]), parent=nursery)
        for descriptor in descriptors:
            os.close(descriptor)


def _keep_child(frame: bytes, shift: socket.socket, *, parent: int) -> None:
    die_with_parent(parent)
    os.setsid()
    keeper = os.getpid()
    child = os.fork()
    if child == 0:
        _run_child(frame, shift, parent=keeper)
    shift.close()  # so that its end is the child's
    with suppress(ChildProcessError):  # the kernel has reaped it
        os.waitpid(child, 0)
    os._exit(0)


def _run_child(frame: bytes, shift: socket.socket, *, parent: int) -> None:
    try:
        die_with_parent(parent)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        _be_first_to_go()
        shift.send(pickle.dumps(os.getpid()))
        stop = threading.Event()
        threading.Thread(target=_listen, args=(shift, stop), daemon=True).start()
        ended = run_and_commit(pickle.loads(frame), stop)  # from the shift that forked us
        shift.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _FRAME)
        shift.send(pickle.dumps(ended))
    finally:
        if sys.exc_info()[0] is not None:
            traceback.print_exc()
        os._exit(1)  # the answer, not the exit code, says how it went; nothing of the parent's may be cleaned up here


def _listen(shift: socket.socket, stop: threading.Event) -> None:
    while _received(shift) == _STOP:
        stop.set()
    os._exit(1)  # the shift is gone


def _be_first_to_go() -> None:
    """Where memory runs out, the kernel is to end the suspect and not its neighbours."""
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
