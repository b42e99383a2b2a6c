"""Runtimes that stream, for the tests of ``inbound``. ``RUNTIMES`` names them for ``settings.RUNTIMES``."""

import threading

from sessions_app.runtimes.base import Runtime, TurnResult

go_on = threading.Event()
started = threading.Event()


class Talks(Runtime):
    """Streams its reply word by word, between things that are not its business to say."""

    def run(self, turn):
        turn.emit({"type": "RUN_FINISHED", "threadId": "x", "runId": "y"})
        turn.emit({"type": "TEXT_MESSAGE_START", "messageId": "m", "role": "assistant"})
        for word in ("one ", "two"):
            turn.emit({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m", "delta": word})
        turn.emit({"type": "TEXT_MESSAGE_CONTENT", "messageId": "m"})
        turn.emit({"type": "TEXT_MESSAGE_END", "messageId": "m"})
        turn.emit({"type": "TOOL_CALL_START", "toolCallId": "t", "toolCallName": "clock"})
        turn.emit({"type": "TOOL_CALL_END", "toolCallId": "t"})
        return TurnResult("one two", usage={"output_tokens": 2})


class Waits(Runtime):
    """Until it is let go or asked to stop; then it answers."""

    def run(self, turn):
        started.set()
        while not go_on.wait(0.02):
            if turn.stop_requested():
                return TurnResult("as far as I came")
        return TurnResult("at last")


class Pours(Runtime):
    """Says more than a reader who does not read may be behind."""

    def run(self, turn):
        for _ in range(9):
            turn.emit({"type": "CUSTOM", "name": "noise", "value": "x" * 1024 * 1024})
        return TurnResult("poured")


class Breaks(Runtime):
    def run(self, turn):
        raise RuntimeError("no model today")


class Sends(Runtime):
    """A line to the agent whose id it is told."""

    def run(self, turn):
        turn.tools.call("agent_send", agent_id=turn.inputs[-1].text, message="From afar.")
        return TurnResult("sent")


RUNTIMES = {name.lower(): f"{__name__}.{name}" for name in ("Talks", "Waits", "Pours", "Breaks", "Sends")}
