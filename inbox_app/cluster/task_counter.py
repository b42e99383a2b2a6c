"""Whether tasks go all the way through one django-q2 group: pusher, worker and monitor.

The group's monitor counts every finished task in a piece of memory that it shares with the supervisor, so the answer
is about this group and not about another one on the same queue, and no lock can be lost with a killed process.
"""

from __future__ import annotations

import mmap
import struct
from typing import Any

from django_q.signals import post_execute

_COUNT = struct.Struct("=Q")
_memory = mmap.mmap(-1, _COUNT.size)


def finished_tasks() -> int:
    """How many tasks have gone all the way, in this group and those before it. Only ever compared."""
    return int(_COUNT.unpack_from(_memory)[0])


def count_finished_tasks() -> None:
    """Count from now on; to be called in the group's main process before it forks."""
    post_execute.connect(_count, dispatch_uid="inbox_app.cluster.task_counter")


def _count(**_signal: Any) -> None:
    _COUNT.pack_into(_memory, 0, finished_tasks() + 1)
