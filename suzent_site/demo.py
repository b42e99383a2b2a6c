"""The conversation that ``up --demo`` plays: through REST on the running server, as any client would do it."""

from __future__ import annotations

import io
import json
import secrets
import shlex
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from django.conf import settings
from django.core.management import CommandError, call_command

from suzent_site.data_dir import secret

PROJECT = "demo"
TOKEN_FILE = "demo_token"  # in the data directory, for its owner only
PLANNER, BAKER, BAND = "demo-planner", "demo-baker", "demo-band"
TITLES = {PLANNER: "Planner", BAKER: "Baker", BAND: "Band"}
# The agents are scripted: a line that begins with ! is what they do; in what they send, \n is a line break.
REQUEST = rf"""The party is on Friday. Ask both of them what they bring.
!send {BAKER} Which cake can you make by Friday?\n!sleep 0.5\n!send {PLANNER} A lemon cake, for twelve.
!send {BAND} Which evening music do you play?\n!sleep 0.5\n!send {PLANNER} Swing, three hours of it."""
PATIENCE = 60.0  # seconds for the whole conversation
NO_PROXY = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is our own server


class Out(Protocol):
    def write(self, text: str, /) -> object: ...


class DemoFailed(Exception):
    """Why the conversation could not be played, in a sentence."""


class TokenRefused(DemoFailed):
    """The token is not good any more."""


@dataclass(frozen=True)
class Rest:
    """Calls with a project token: what it sends without naming an agent comes from the user."""

    base_url: str
    token: str

    def call(self, path: str, *, body: dict[str, Any] | None = None, agent: str = "") -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        if agent:
            headers["X-Suzent-Agent"] = agent
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.base_url}{path}", data=data, headers=headers)
        return _answer(request)


def _answer(request: urllib.request.Request) -> dict[str, Any]:
    try:
        with NO_PROXY.open(request, timeout=90) as response:
            answer: dict[str, Any] = json.load(response)
            return answer
    except urllib.error.HTTPError as error:
        failure = TokenRefused if error.code == 401 else DemoFailed
        raise failure(f"{request.selector} answered {error.code}: {_detail(error)}") from error
    except OSError as error:
        raise DemoFailed(f"{request.full_url} cannot be reached: {error}") from error


def _detail(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["detail"])
    except (ValueError, KeyError, TypeError):
        return error.reason


def play(base_url: str, out: Out) -> bool:
    """Set the small project up if need be, play the conversation and print it. False: it did not come to its end."""
    try:
        _Play(_set_up(base_url.rstrip("/")), out).run()
    except (DemoFailed, CommandError) as error:
        out.write(f"\nThe demo stops here. {error}\n")
        return False
    return True


def _set_up(base_url: str) -> Rest:
    """With the token of an earlier start, if there is one and it is still good: not one more at each start."""
    try:
        return _opened(base_url)
    except TokenRefused:  # revoked, or the database is another
        (settings.SUZENT_DATA_DIR / TOKEN_FILE).unlink()
        return _opened(base_url)


def _opened(base_url: str) -> Rest:
    rest = Rest(base_url, secret(settings.SUZENT_DATA_DIR, TOKEN_FILE, make=_new_token))
    _open_sessions(rest)
    return rest


def _new_token() -> str:
    """A token of the demo's project, which is made at the first start."""
    with suppress(CommandError):  # it is there from an earlier start; if it is not, the next command says why
        _command("project", "create", PROJECT)
    return str(_command("token", "create", "--project", PROJECT)["token"])


def _command(*words: str) -> dict[str, Any]:
    printed = io.StringIO()
    call_command(*words, stdout=printed)
    answer: dict[str, Any] = json.loads(printed.getvalue())
    return answer


def _open_sessions(rest: Rest) -> None:
    known = {session["agent_id"] for session in rest.call("/api/sessions?limit=50")["sessions"]}
    for agent_id, title in TITLES.items():
        if agent_id not in known:
            rest.call("/api/sessions", body={"agent_id": agent_id, "title": title, "runtime": "scripted"})


@dataclass(frozen=True, order=True)
class _Event:
    """Something that the rows say has happened."""

    at: str  # ISO 8601 in UTC: sorts as it is
    number: int  # of the message in this play
    stage: int
    lines: tuple[str, ...]


@dataclass
class _Play:
    """Follows every message that the user's one sets off, until no more come."""

    rest: Rest
    out: Out
    give_up_at: float = field(default_factory=lambda: time.monotonic() + PATIENCE)
    told: set[_Event] = field(default_factory=set)
    numbers: dict[str, int] = field(default_factory=dict)  # message id -> its short name in what we print

    def run(self) -> None:
        self.say(INTRODUCTION)
        first = f"demo-{secrets.token_hex(4)}"
        self.rest.call("/api/tools/agent_send", body={"agent_id": PLANNER, "message": REQUEST, "message_id": first})
        while unsettled := self.tell(first):
            self.wait_for(unsettled[0])
        self.show_transcript()
        self.say(_how_to_go_on(self.rest))

    def tell(self, first: str) -> list[str]:
        """Print what is new, in the order in which it happened; answer with what has not settled yet, oldest first."""
        messages = list(reversed(list(self.since(first))))
        known = {event for message in messages for event in _events(self.number_of(message), message)}
        for event in sorted(known - self.told):
            self.say("\n".join(event.lines))
        self.told |= known
        return [message["message_id"] for message in messages if _is_open(message)]

    def number_of(self, message: dict[str, Any]) -> int:
        return self.numbers.setdefault(message["message_id"], len(self.numbers) + 1)

    def since(self, first: str) -> Iterator[dict[str, Any]]:
        for message in self.rest.call(f"/api/messages?agent_id={PLANNER}&limit=50")["messages"]:
            yield message
            if message["message_id"] == first:
                return

    def wait_for(self, message_id: str) -> None:
        message = self.rest.call(f"/api/messages/{message_id}?wait=1")
        if _is_open(message) and time.monotonic() > self.give_up_at:
            raise DemoFailed(f"{message_id} is {message['status']}; it waits for: {message['waiting_for']}.")

    def show_transcript(self) -> None:
        self.say(f"\nWhat {PLANNER} has in its transcript now (agent_read):")
        read = self.rest.call("/api/tools/agent_read", body={"agent_id": PLANNER}, agent=BAKER)
        for entry in read["messages"][-6:]:  # a request and two answers, each with a reply
            self.say(f"  {entry['seq']:>3} {entry['role']:<10} {_short(entry['text'])}")

    def say(self, text: str) -> None:
        self.out.write(f"{text}\n")


def _is_open(message: dict[str, Any]) -> bool:
    """Raises DemoFailed for a message that failed: the play cannot go on without it."""
    if message["status"] == "failed":
        raise DemoFailed(f"{message['message_id']} failed: {message['reason']}.")
    return message["settled_at"] is None


def _events(number: int, message: dict[str, Any]) -> Iterator[_Event]:
    accepted, started, settled = message["accepted_at"], message["started_at"], message["settled_at"]
    arrow = f"{message['sender'] or 'you'} → {message['agent_id']}"
    text = [f"{'':14}│ {line}" for line in message["content"].splitlines()]
    yield _Event(accepted, number, 1, (
        f"\n{_clock(accepted)}  ({number}) {arrow}", f"{'':14}{message['message_id']}", *text,
        f"{_clock(accepted)}  ({number}) pending: the row is committed",
    ))  # fmt: skip
    if started:
        yield _Event(started, number, 2, (f"{_clock(started)}  ({number}) processing: {message['agent_id']} is woken",))
    if settled:
        yield _Event(settled, number, 3, (f"{_clock(settled)}  ({number}) {message['status']}",))


def _clock(moment: str) -> str:
    return f"{datetime.fromisoformat(moment):%H:%M:%S.%f}"[:12]


def _short(text: str) -> str:
    line = text.replace("\n", " ⏎ ")
    return line if len(line) <= 100 else f"{line[:99]}…"


INTRODUCTION = f"""
A conversation, through the real path: REST → committed row → django-q2 → lane → turn → transcript → acknowledgement.
You ask {PLANNER}, it asks {BAKER} and {BAND}, and both answer it. They are scripted agents: a line that begins
with ! is what they do, so you see the whole script of the play in the first message."""


def _how_to_go_on(rest: Rest) -> str:
    body = json.dumps({"agent_id": PLANNER, "message": "hello"})
    send = [
        "curl", "-sS", f"{rest.base_url}/api/tools/agent_send",
        "-H", f"Authorization: Bearer {rest.token}", "-H", "Content-Type: application/json", "-d", body,
    ]
    return f"""
That was all of it. Go on:
  watch and repair    {rest.base_url}/admin/
  the API's pages     {rest.base_url}/api/docs
  send one yourself   {shlex.join(send)}
"""
