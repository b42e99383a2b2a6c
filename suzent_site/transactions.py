"""How this product writes: short durable transactions, one writer at a time in a process on SQLite.

SQLite's busy handler is unfair: with several threads of one process writing, the 95th percentile of a commit was
337-633 ms; with one process-wide lock around write transactions it was 32-42 ms (see the notes on the prototype).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TypeVar

from django.db import InterfaceError, OperationalError, connection, transaction

T = TypeVar("T")
Act = Callable[[], object]
_writing = threading.RLock()


class _Thread(threading.local):
    """``hints``: what this thread's durable block has to call when it is over; None outside of one."""

    hints: list[Act] | None = None


_thread = _Thread()


@contextmanager
def durable() -> Iterator[None]:
    """An outermost write transaction: what it did is committed when the block ends, or nothing of it is."""
    hints: list[Act] = []
    with _turnstile():
        _thread.hints = hints
        try:
            with transaction.atomic(durable=True):
                yield
        finally:
            _thread.hints = None
    for act in hints:
        _give(act)


def hint_on_commit(act: Act) -> None:
    """Call ``act`` when this is committed and the next writer is let in: it may wait for a broker that is away.

    Its errors are logged and reach nobody.
    """
    transaction.on_commit(partial(_keep, act))


def _keep(act: Act) -> None:
    if _thread.hints is None:  # committed by Django's own atomic
        _give(act)
    else:
        _thread.hints.append(act)


def _give(act: Act) -> None:
    transaction.on_commit(act, robust=True)  # outside of a transaction: called at once


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
