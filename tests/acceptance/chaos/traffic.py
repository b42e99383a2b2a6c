"""The mail: numbered messages with mixed turns, sent over REST as a careful client sends, and watched until they settle."""

from __future__ import annotations

import http.client
import json
import queue
import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from tests.acceptance.chaos.tables import rows_if_there
from tests.acceptance.conftest import Answer, Site

ASKERS = [f"asker-{n}" for n in range(5)]
AGENTS = [f"agent-{n}" for n in range(12)]
LEAVER = "leaver"  # archived in the middle
DOOMED = "doomed"  # gets what always fails
TRY_AGAIN = {0, 429, 503}  # no answer, full, not now
PATIENCE = 4  # seconds for an answer; then the client asks again under the same id
WATCHERS = 3


@dataclass(frozen=True)
class Parcel:
    """One message of the plan. ``stops``: what its turn is to send on, first to last: (agent, content)."""

    number: int
    sender: str
    target: str
    content: str
    valid_for: float | None = None
    stops: tuple[tuple[str, str], ...] = ()

    @property
    def message_id(self) -> str:
        return f"chaos-{self.number}"

    @property
    def may_fail_as(self) -> str:
        """The reason with which it is allowed to fail; empty: it must be delivered."""
        if self.valid_for is not None:
            return "expired"
        return {LEAVER: "target_gone", DOOMED: "exhausted"}.get(self.target, "")


def plan(rng: random.Random, count: int, *, doomed: int) -> list[Parcel]:
    parcels = [_parcel(rng, number) for number in range(count - doomed)]
    last = [Parcel(count - 1 - n, rng.choice(ASKERS), DOOMED, f"!fail 99\nnumber {count - 1 - n}") for n in range(doomed)]
    return [*last, *parcels]


def _parcel(rng: random.Random, number: int) -> Parcel:
    sender, target, text = rng.choice(ASKERS), rng.choice(AGENTS), f"number {number}"
    kind = rng.choices(["instant", "slow", "fails once", "chain", "hurried", "leaver"], [58, 22, 3, 11, 3, 3])[0]
    if kind == "slow":
        return Parcel(number, sender, target, f"!sleep {rng.uniform(0.05, 1.5):.2f}\n{text}")
    if kind == "fails once":
        return Parcel(number, sender, target, f"!fail 1\n{text}")
    if kind == "chain":
        return _chain(rng, number, sender, target)
    if kind == "hurried":
        return Parcel(number, sender, target, text, valid_for=round(rng.uniform(0.2, 3), 2))
    return Parcel(number, sender, LEAVER if kind == "leaver" else target, text)


def _chain(rng: random.Random, number: int, sender: str, target: str) -> Parcel:
    """To an agent that sends it on to a second one, which sends it on to a third, half of the time."""
    second, third = rng.sample([agent for agent in AGENTS if agent != target], 2)
    if rng.random() < 0.5:
        at_second = f"number {number} passed on"
        return Parcel(number, sender, target, f"!send {second} {at_second}\nnumber {number}", stops=((second, at_second),))
    at_third = f"number {number} passed on twice"
    at_second = f"!send {third} {at_third}\nnumber {number} passed on"
    script = "!send {} {}\nnumber {}".format(second, at_second.replace("\n", "\\n"), number)
    return Parcel(number, sender, target, script, stops=((second, at_second), (third, at_third)))


@dataclass
class Record:
    """What the clients were told."""

    accepted: set[int] = field(default_factory=set)
    refused: set[int] = field(default_factory=set)  # 410: the target is archived
    answers: Counter[int] = field(default_factory=Counter)  # by status, those to watchers included
    odd: list[str] = field(default_factory=list)  # answers that nobody should get
    early: list[str] = field(default_factory=list)  # said to be delivered before the turn was committed
    settled_seen: int = 0


class Traffic:
    """Clients (one for each asker) that send their part of the plan in order, and watchers."""

    def __init__(self, site: Site, parcels: list[Parcel], *, seed: int, seconds: float, give_up_at: float) -> None:
        self.site, self.parcels, self.give_up_at = site, parcels, give_up_at
        self.record = Record()
        self.tokens: dict[str, str] = {}
        self._seed, self._seconds = seed, seconds
        self._to_watch: queue.SimpleQueue[Parcel | None] = queue.SimpleQueue()
        self._finishing = threading.Event()
        self._clients = [threading.Thread(target=self._send_all, args=(asker,), daemon=True) for asker in ASKERS]
        self._watchers = [threading.Thread(target=self._watch_all, daemon=True) for _ in range(WATCHERS)]

    def open_sessions(self) -> None:
        self.site.command("project", "create", "office")
        self.tokens[""] = self.site.command("token", "create", "--project", "office")["token"]
        for agent in [*ASKERS, *AGENTS, LEAVER, DOOMED]:
            runtime = "echo" if agent in ASKERS else "scripted"
            made = self.site.post("/api/sessions", {"agent_id": agent, "runtime": runtime}, token=self.tokens[""])
            assert made.status == 201, made
            self.tokens[agent] = made.json["token"]

    def start(self) -> None:
        for thread in [*self._clients, *self._watchers]:
            thread.start()

    @property
    def sending(self) -> bool:
        return any(client.is_alive() for client in self._clients)

    @property
    def sent(self) -> int:
        return len(self.record.accepted) + len(self.record.refused)

    def finish(self) -> None:
        """Everything has settled: let the watchers see the rest."""
        self._finishing.set()
        for _ in self._watchers:
            self._to_watch.put(None)
        for thread in self._watchers:
            thread.join(max(0, self.give_up_at - time.monotonic()))

    # --- sending ---------------------------------------------------------------------------------------------------
    def _send_all(self, asker: str) -> None:
        rng = random.Random(f"{self._seed} {asker}")
        mine = [parcel for parcel in self.parcels if parcel.sender == asker]
        burst = 0
        for parcel in mine:
            self._send(parcel, rng)
            burst = burst - 1 if burst else rng.randrange(12)
            if not burst:
                time.sleep(rng.expovariate(len(mine) / 6.5 / self._seconds))

    def _send(self, parcel: Parcel, rng: random.Random) -> None:
        body = {"agent_id": parcel.target, "message": parcel.content, "message_id": parcel.message_id}
        if parcel.valid_for is not None:
            body["valid_for"] = parcel.valid_for
        while time.monotonic() < self.give_up_at:
            answer = self._ask("POST", "/api/tools/agent_send", token=self.tokens[parcel.sender], body=body)
            if answer.status not in TRY_AGAIN:
                self._note(parcel, answer)
                return
            time.sleep(rng.uniform(0.1, 0.5))

    def _note(self, parcel: Parcel, answer: Answer) -> None:
        if answer.status == 202:
            self.record.accepted.add(parcel.number)
            self._to_watch.put(parcel)
        elif answer.status == 410 and parcel.target == LEAVER:
            self.record.refused.add(parcel.number)
        else:
            self.record.odd.append(f"{parcel.message_id}: {answer}")

    def archive_leaver(self) -> None:
        """As an operator who insists until it is done."""
        while time.monotonic() < self.give_up_at:
            answer = self._ask("DELETE", f"/api/sessions/{LEAVER}", token=self.tokens[""])
            if answer.status not in TRY_AGAIN:
                if answer.status not in {204, 404, 410}:
                    self.record.odd.append(f"archive: {answer}")
                return
            time.sleep(0.2)

    # --- watching --------------------------------------------------------------------------------------------------
    def _watch_all(self) -> None:
        while (parcel := self._to_watch.get()) is not None:
            if not self._watch(parcel) and not self._finishing.is_set():
                self._to_watch.put(parcel)

    def _watch(self, parcel: Parcel) -> bool:
        """Ask for the message, waiting a moment. True once it was seen settled."""
        answer = self._ask("GET", f"/api/messages/{parcel.message_id}?wait=1", token=self.tokens[parcel.sender])
        if answer.status != 200:
            if answer.status not in TRY_AGAIN:
                self.record.odd.append(f"watching {parcel.message_id}: {answer}")
            time.sleep(0.3)
            return False
        if answer.json["status"] == "delivered" and self._has_marker(parcel) is False:
            self.record.early.append(parcel.message_id)
        settled = answer.json["status"] in {"delivered", "failed"}
        self.record.settled_seen += settled
        return settled

    def _has_marker(self, parcel: Parcel) -> bool | None:
        """None: the database cannot be asked just now."""
        found = rows_if_there(
            self.site, "SELECT 1 FROM sessions_app_deliverymarker WHERE session_id = ? AND key = ?", parcel.target, parcel.message_id
        )
        return None if found is None else bool(found)

    def _ask(self, method: str, path: str, *, token: str, body: object = None) -> Answer:
        answer = ask(self.site.port, method, path, token=token, body=body)
        self.record.answers[answer.status] += 1
        if answer.status >= 500 and answer.status != 503:
            self.record.odd.append(f"{method} {path.partition('?')[0]}: {answer}")
        return answer


def ask(port: int, method: str, path: str, *, token: str, body: object = None) -> Answer:
    """One request on a connection of its own. Status 0: no answer, or only a part of one."""
    link = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        link.request(method, path, None if body is None else json.dumps(body), headers)
        response = link.getresponse()
        return Answer(response.status, response.read().decode())
    except (OSError, http.client.HTTPException) as error:
        return Answer(0, repr(error))
    finally:
        link.close()
