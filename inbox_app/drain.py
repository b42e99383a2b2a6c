"""The order to stop claiming: one byte of memory that the supervisor shares with every process it forks.

A byte and not a multiprocessing.Event: a process killed inside ``Event.is_set()`` takes its lock along, and everybody
else then waits for ever. The memory is made as this module is imported, so import it before the fork.
"""

from __future__ import annotations

import mmap

_flag = mmap.mmap(-1, 1)


def request_drain() -> None:
    _flag[0] = 1


def draining() -> bool:
    """Whether shifts are to claim nothing more and to leave when their turns are done."""
    return _flag[0] == 1
