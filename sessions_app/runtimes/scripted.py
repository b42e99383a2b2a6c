"""An agent that does what its mail says: for demos, drills and tests.

Lines that begin with ``!`` are directives; the others are plain and are answered with ``ok: …``. Directives are obeyed
in the kinds of mail that an agent or a person writes, and in a cron job's prompt, never in results and notices, which may quote anybody's text.

    !sleep S        !fail N     !unavailable N    !crash N        (N: while the attempt's number is at most N)
    !say TEXT       !bytes N    !send AGENT TEXT  !spawn TEXT     !list [STATUS]   !read AGENT   !stop AGENT
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from django.conf import settings

from sessions_app.runtimes.base import RunningTurn, Runtime, TurnInput, TurnResult, Unavailable
from suzent_site.errors import SuzentError

OBEYED_KINDS = frozenset({"agent_message", "user_message", "subagent_task", "cron"})
LONGEST_SLEEP = 86_400.0  # seconds
MOST_BYTES = 10_000_000


class ScriptFailed(SuzentError):
    """The script said to fail."""

    code = "script_failed"


class BadDirective(SuzentError):
    """The script cannot be read."""

    code = "bad_directive"
    status = 400


class Scripted(Runtime):
    def run(self, turn: RunningTurn) -> TurnResult:
        started, outcome = time.time(), "failed"
        try:
            text = "\n".join(_perform(turn))
            outcome = "stopped" if turn.stop_requested() else "ok"
            return TurnResult(text)
        except Unavailable:
            outcome = "unavailable"
            raise
        finally:
            _log_effects(turn, started=started, outcome=outcome)


def _perform(turn: RunningTurn) -> Iterator[str]:
    """The lines of the reply. A stop ends the script where it is."""
    for given in turn.inputs:
        script, plain = _read(given)
        for line in script:
            if turn.stop_requested():
                return
            yield from _Step(turn, given).perform(line)
        if plain and not turn.stop_requested():
            yield f"ok: {plain}"


def _read(given: TurnInput) -> tuple[list[str], str]:
    """The directives, and the plain lines as one text."""
    if given.kind not in OBEYED_KINDS:
        return [], given.text
    lines = [line.removesuffix("\r") for line in given.text.split("\n")]
    plain = "\n".join(line for line in lines if not line.startswith("!")).strip("\n")
    return [line for line in lines if line.startswith("!")], plain if plain.strip() else ""


@dataclass(frozen=True)
class _Step:
    """One directive of one input. Each method answers with the line it produced, or None."""

    turn: RunningTurn
    given: TurnInput

    def perform(self, line: str) -> Iterator[str]:
        name, _, argument = line.removeprefix("!").partition(" ")
        try:
            produced = self._named(name)(self, argument)
        except (Unavailable, ScriptFailed):
            raise
        except BadDirective as error:
            produced = f"error: {error.detail}"
        except SuzentError as error:
            produced = f"error: {error.code}"
        if produced is not None:
            yield produced

    def _named(self, name: str) -> Callable[[_Step, str], str | None]:
        if name not in self.DIRECTIVES:
            raise BadDirective(f"there is no directive !{name}")
        return self.DIRECTIVES[name]

    def sleep(self, argument: str) -> None:
        self.turn.wait_for_stop(_number(argument, "!sleep takes seconds", most=LONGEST_SLEEP))

    def fail(self, argument: str) -> None:
        if self._is_within(argument, "!fail"):
            raise ScriptFailed

    def unavailable(self, argument: str) -> None:
        if self._is_within(argument, "!unavailable"):
            raise Unavailable

    def crash(self, argument: str) -> None:
        within = self._is_within(argument, "!crash")
        if not settings.SUZENT_ALLOW_CRASH:
            raise BadDirective("!crash needs SUZENT_ALLOW_CRASH=1")
        if within:
            os._exit(9)

    def _is_within(self, argument: str, name: str) -> bool:
        return self.given.attempt <= _count(argument, f"{name} takes a number of attempts")

    def say(self, argument: str) -> str:
        return argument

    def bytes(self, argument: str) -> str:
        return "x" * _count(argument, "!bytes takes a number of bytes", most=MOST_BYTES)

    def send(self, argument: str) -> str:
        agent_id, _, text = argument.strip(" ").partition(" ")
        return self._tool("agent_send", agent_id=agent_id, message=_with_breaks(text))

    def spawn(self, argument: str) -> str:
        return self._tool("agent", description=_with_breaks(argument))

    def list(self, argument: str) -> str:
        return self._tool("agent_list", **({"status": argument.strip()} if argument.strip() else {}))

    def read(self, argument: str) -> str:
        return self._tool("agent_read", agent_id=argument.strip())

    def stop(self, argument: str) -> str:
        return self._tool("agent_stop", agent_id=argument.strip())

    def _tool(self, name: str, **arguments: str) -> str:
        return json.dumps(self.turn.tools.call(name, **arguments), ensure_ascii=False, default=str)

    DIRECTIVES: ClassVar[dict[str, Callable[[_Step, str], str | None]]] = {
        "sleep": sleep,
        "fail": fail,
        "unavailable": unavailable,
        "crash": crash,
        "say": say,
        "bytes": bytes,
        "send": send,
        "spawn": spawn,
        "list": list,
        "read": read,
        "stop": stop,
    }


def _with_breaks(text: str) -> str:
    """A script is one line; a literal backslash and n in what it sends is a line break."""
    return text.replace("\\n", "\n")


def _number(text: str, what: str, *, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= most:
        raise BadDirective(f"{what} from 0 to {most:.0f}, not {text.strip()[:40]!r}")
    return value


def _count(text: str, what: str, *, most: int = 10**9) -> int:
    value = _number(text, what, most=most)
    if value != int(value):
        raise BadDirective(f"{what}, a whole one, not {text.strip()[:40]!r}")
    return int(value)


def _log_effects(turn: RunningTurn, *, started: float, outcome: str) -> None:
    """Note in ``SUZENT_EFFECTS_FILE`` that the turn was executed, whole lines in one write: what drills count."""
    if not settings.SUZENT_EFFECTS_FILE:
        return
    ended, pid = time.time(), os.getpid()
    lines = [
        json.dumps({
            "message_id": given.message_id, "attempt": given.attempt, "agent_id": turn.agent_id, "pid": pid,
            "started": started, "ended": ended, "outcome": outcome,
        })
        for given in turn.inputs
    ]
    file = os.open(settings.SUZENT_EFFECTS_FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, "".join(f"{line}\n" for line in lines).encode())
    finally:
        os.close(file)
