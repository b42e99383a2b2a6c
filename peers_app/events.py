"""A turn as AG-UI events in the order of wire.md 3, each as one block of a server-sent event stream."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ag_ui.core import (
    CustomEvent,
    Event,
    RunErrorEvent,
    RunFinishedEvent,
    RunStartedEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
)
from ag_ui.encoder import EventEncoder
from pydantic import TypeAdapter, ValidationError

from sessions_app.text import storable_json

ERROR_SHOWN = 300  # characters of an error that a device is told
PASSED_ON = ("TEXT_MESSAGE_", "TOOL_CALL_", "CUSTOM")  # of what a runtime emits; where a run begins and ends is our word
_events: TypeAdapter[Event] = TypeAdapter(Event)


@dataclass
class Script:
    """What is said of one run, block by block. ``said``: the runtime has streamed text itself, so its reply is not repeated."""

    thread_id: str
    run_id: str
    said: bool = False
    _encoder: EventEncoder = field(default_factory=EventEncoder)

    def begin(self) -> str:
        return self._block(RunStartedEvent(timestamp=int(time.time() * 1000), thread_id=self.thread_id, run_id=self.run_id))

    def emitted(self, event: Mapping[str, Any]) -> str | None:
        """The block of an event of the runtime; None for one that is no AG-UI event or not the runtime's to send."""
        if not str(event.get("type", "")).startswith(PASSED_ON):
            return None
        try:
            known = _events.validate_python(storable_json(dict(event)))
        except (ValidationError, TypeError, ValueError):
            return None
        self.said = self.said or known.type == "TEXT_MESSAGE_START"
        return self._block(known)

    def end(self, *, text: str, usage: Mapping[str, Any]) -> Iterator[str]:
        """A turn that committed, stopped ones included."""
        if not self.said:
            yield from self._reply(text)
        if usage:
            yield self._block(CustomEvent(name="usage_update", value=dict(usage)))
        yield self._finish()

    def fail(self, error: str) -> Iterator[str]:
        """0.9.1 sends RUN_FINISHED after RUN_ERROR, and its readers wait for that."""
        yield self._block(RunErrorEvent(message=error[:ERROR_SHOWN] or "The turn failed."))
        yield self._finish()

    def _reply(self, text: str) -> Iterator[str]:
        message_id = secrets.token_hex(16)
        yield self._block(TextMessageStartEvent(message_id=message_id, role="assistant"))
        if text:
            yield self._block(TextMessageContentEvent(message_id=message_id, delta=text))
        yield self._block(TextMessageEndEvent(message_id=message_id))

    def _finish(self) -> str:
        return self._block(RunFinishedEvent(thread_id=self.thread_id, run_id=self.run_id))

    def _block(self, event: Any) -> str:
        return self._encoder.encode(event)
