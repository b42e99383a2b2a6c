"""Turns of this process that only wait for a sub-agent: meanwhile each leaves its place in the shift to another."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from inbox_app import wake

_standing: set[str] = set()  # the keys of their lanes; adding and removing one is atomic


@contextmanager
def standing_aside(lane: str) -> Iterator[None]:
    """While the turn that holds this lane waits."""
    _standing.add(lane)
    wake.bell.set()
    try:
        yield
    finally:
        _standing.discard(lane)


def count(lanes: Collection[str]) -> int:
    """How many of these are waiting."""
    return len(_standing.intersection(lanes))
