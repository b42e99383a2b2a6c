"""Runtimes that misbehave, for the tests of the engine. ``RUNTIMES`` names them for ``settings.RUNTIMES``."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

from sessions_app.runtimes.base import Runtime, TurnResult, Unavailable
from suzent_site.errors import SuzentError

hung = threading.Event()  # set: what hangs goes on
said: list[str] = []  # what they noted


class Hanging(Runtime):
    """Sees no stop request; when it is let go at last it tries to send and to answer."""

    def run(self, turn):
        hung.wait(60)
        try:
            turn.tools.call("agent_send", agent_id=turn.config["to"], message="from a zombie")
        except SuzentError as error:
            said.append(error.code)
        return TurnResult("too late")


class StopsAngrily(Runtime):
    def run(self, turn):
        if turn.wait_for_stop(60):
            raise RuntimeError("stopped in the middle")
        return TurnResult("never stopped")


class Quits(Runtime):
    def run(self, turn):
        sys.exit(3)


class KillsItsParent(Runtime):
    def run(self, turn):
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
        return TurnResult("its parent was no use to it")


class KillsItsGroup(Runtime):
    def run(self, turn):
        os.kill(0, signal.SIGKILL)
        return TurnResult("it has no group")


class KillsItsNursery(Runtime):
    def run(self, turn):
        stat = Path(f"/proc/{os.getppid()}/stat").read_text(encoding="utf-8")
        os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
        time.sleep(60)
        return TurnResult("its nursery was no use to it")


class Raises(Runtime):
    def run(self, turn):
        raise RuntimeError(turn.inputs[0].text)


class RaisesUnstorable(Runtime):
    def run(self, turn):
        raise RuntimeError("a\x00b\ud800")


class Away(Runtime):
    """Unavailable, for as long as the message says."""

    def run(self, turn):
        raise Unavailable(float(turn.inputs[0].text), "gone fishing")


class SaysParts(Runtime):
    def run(self, turn):
        return TurnResult("x", parts=[object()])


class SaysNothing(Runtime):
    def run(self, turn):
        return TurnResult(None)


class AnswersNone(Runtime):
    def run(self, turn):
        return None


class SaysText(Runtime):
    def run(self, turn):
        return "no result at all"


class SaysUnstorable(Runtime):
    def run(self, turn):
        return TurnResult("a\x00b\ud800")


RUNTIMES = {
    name: f"{__name__}.{name}"
    for name in (
        "Hanging", "StopsAngrily", "Quits", "KillsItsParent", "KillsItsGroup", "KillsItsNursery", "Raises", "RaisesUnstorable", "Away", "SaysParts",
        "SaysNothing", "AnswersNone", "SaysText", "SaysUnstorable",
    )
}
