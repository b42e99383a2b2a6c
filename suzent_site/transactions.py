"""How this product writes: short durable transactions, one writer at a time in a process on SQLite.

SQLite's busy handler is unfair: with several threads of one process writing, the 95th percentile of a commit was
337-633 ms; with one process-wide lock around write transactions it was 32-42 ms (see the notes on the prototype).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TypeVar

from django.db import InterfaceError, OperationalError, connection, transaction

T = TypeVar("T")
_writing = threading.RLock()


@contextmanager
def durable() -> Iterator[None]:
    """An outermost write transaction: what it did is committed when the block ends, or nothing of it is."""
    with _turnstile(), transaction.atomic(durable=True):
        yield


def _turnstile() -> threading.RLock | nullcontext[None]:
    return _writing if connection.vendor == "sqlite" else nullcontext()


def until_answered(act: Callable[[], T], *, give_up_at: float, wait: Callable[[float], object] = time.sleep) -> T:
    """Call ``act`` again while the database cannot be reached.

    ``give_up_at`` is a ``time.monotonic()`` reading: past it the last error is raised. ``act`` must be safe to
    repeat after a commit whose answer was lost.
    """
    pause = 0.05
    while True:
        try:
            return act()
        except (OperationalError, InterfaceError):
            if time.monotonic() + pause >= give_up_at:
                raise
            connection.close()
        wait(pause)
        pause = min(pause * 2, 1.0)
