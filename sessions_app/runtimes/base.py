"""The contract between the engine and whatever thinks for an agent.

A runtime gets one :class:`RunningTurn` and answers with one :class:`TurnResult`. No transaction and no lock is open
meanwhile. It may raise :class:`Unavailable` (the try is not charged) or anything else (it is). It may be run again for
the same message after a crash, so its own effects on the world should be keyed by ``TurnInput.message_id``.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, Protocol

from django.conf import settings
from django.utils.module_loading import import_string

from suzent_site.errors import SuzentError


class Unavailable(SuzentError):
    """The agent's runtime cannot be reached at present."""

    code = "unavailable"
    status = 503

    def __init__(self, retry_after: float | None = None, detail: str = "") -> None:
        """``retry_after``: seconds until the next try; None leaves it to the backoff."""
        self.retry_after = retry_after
        super().__init__(detail, retry_after=retry_after)


class UnknownRuntime(SuzentError):
    """There is no runtime by that name in the settings."""

    code = "unknown_runtime"
    status = 400


@dataclass(frozen=True)
class TurnInput:
    """What the turn is to answer. ``header`` says where it comes from; only the server writes it."""

    message_id: str
    kind: str
    text: str
    attempt: int = 1
    header: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class HistoryEntry:
    seq: int
    role: str
    text: str
    created_at: datetime


class Tools(Protocol):
    def call(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        """Call one of our tools as the agent whose turn this is. Raises SuzentError when it is refused."""
        ...


@dataclass(frozen=True)
class RunningTurn:
    """All that a runtime sees of its turn."""

    agent_id: str
    config: Mapping[str, Any]
    inputs: tuple[TurnInput, ...]
    history: Callable[[int], list[HistoryEntry]]  # the newest so many visible entries, oldest first
    tools: Tools
    emit: Callable[[Mapping[str, Any]], None]  # one AG-UI event for whoever watches
    stop: threading.Event  # set by the engine: a person asked, the lease is lost, or the process drains

    def stop_requested(self) -> bool:
        return self.stop.is_set()

    def wait_for_stop(self, seconds: float) -> bool:
        """Wait so long, less if a stop is requested: True as soon as one is."""
        return self.stop.wait(seconds)


@dataclass(frozen=True)
class TurnResult:
    text: str
    parts: list[dict[str, Any]] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)


class Runtime(ABC):
    """One instance serves all turns of a process, in many threads at once: keep no state in it."""

    @abstractmethod
    def run(self, turn: RunningTurn) -> TurnResult: ...


def runtime_named(name: str) -> Runtime:
    """Raises UnknownRuntime if ``settings.RUNTIMES`` has no such name."""
    path = settings.RUNTIMES.get(name)
    if path is None:
        raise UnknownRuntime(f"There is no runtime {name!r}; there are: {', '.join(sorted(settings.RUNTIMES))}.")
    return _made(path)


@cache
def _made(path: str) -> Runtime:
    runtime: Runtime = import_string(path)()
    return runtime
