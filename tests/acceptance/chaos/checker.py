"""The judge: what the tables and the effects file say of a run, held against what the clients were told."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from tests.acceptance.chaos.killer import Shot
from tests.acceptance.chaos.tables import seconds
from tests.acceptance.chaos.traffic import ASKERS, Parcel, Record
from tests.acceptance.conftest import Site


@dataclass(frozen=True)
class Row:
    """A message as it is in the end."""

    pk: int
    message_id: str
    sender: str
    target: str
    kind: str
    content: str
    status: str
    reason: str
    attempts: int
    losses: int
    in_reply_to: str
    settled_at: float | None


@dataclass(frozen=True)
class Entry:
    """What a target was told: an entry of the role user in its transcript."""

    session: str
    message_id: str
    text: str
    turn_state: str
    committed_at: float | None


@dataclass(frozen=True)
class Try:
    """An attempt."""

    message: int
    owner: str
    started_at: float
    finished_at: float | None
    outcome: str


@dataclass
class Verdict:
    """Every list is to be empty."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)
    early: list[str] = field(default_factory=list)  # delivered before its turn was committed
    unsettled: list[str] = field(default_factory=list)
    failed_wrongly: list[str] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)  # missing, doubled or unfounded
    charged_wrongly: list[str] = field(default_factory=list)
    attempts: list[str] = field(default_factory=list)
    odd_answers: list[str] = field(default_factory=list)
    not_executed: list[str] = field(default_factory=list)

    def faults(self) -> dict[str, list[str]]:
        return {name: found for name, found in vars(self).items() if found}


class Checker:
    def __init__(self, site: Site, parcels: Iterable[Parcel], record: Record, effects: Path) -> None:
        self.parcels, self.record, self.on_postgresql = list(parcels), record, bool(site.database_url)
        self.rows = _messages(site)
        self.by_id = {row.message_id: row for row in self.rows}
        self.entries = _entries(site)
        self.tries = _tries(site)
        self.leases = [f"lane {key} is still held" for (key,) in site.rows("SELECT key FROM sessions_app_lane WHERE lease_owner IS NOT NULL")]
        self.turns = [f"turn {pk} still runs" for (pk,) in site.rows("SELECT id FROM sessions_app_turn WHERE finished_at IS NULL")]
        self.executed = _executed(effects)
        self.entries_of = Counter(entry.message_id for entry in self.entries)

    def verdict(self) -> Verdict:
        accepted = [parcel for parcel in self.parcels if parcel.number in self.record.accepted]
        return Verdict(
            lost=[*self._lost(accepted), *self._chains_cut(accepted)],
            doubled=[*self._doubled(), *self._told_although_refused()],
            out_of_order=[*self._out_of_order(), *self._numbers_out_of_order()],
            early=[*self.record.early, *self._early()],
            unsettled=[*(row.message_id for row in self.rows if row.status not in {"delivered", "failed"}), *self.leases, *self.turns],
            failed_wrongly=list(self._failed_wrongly()),
            notices=list(self._notices()),
            charged_wrongly=list(self._charged_wrongly()),
            attempts=list(self._attempts()),
            odd_answers=self.record.odd,
            not_executed=list(self._not_executed()),
        )

    # --- once, and in order ----------------------------------------------------------------------------------------
    def _lost(self, accepted: list[Parcel]) -> Iterator[str]:
        for parcel in accepted:
            row = self.by_id.get(parcel.message_id)
            if row is None:
                yield f"{parcel.message_id}: accepted, and no row"
            elif row.status == "delivered" and not self.entries_of[row.message_id]:
                yield f"{parcel.message_id}: delivered, and not in the transcript of {row.target}"
        for row in self.rows:
            if row.message_id.startswith(("turn-", "failure-")) and row.status == "delivered" and not self.entries_of[row.message_id]:
                yield f"{row.message_id}: delivered, and not in the transcript of {row.target}"

    def _chains_cut(self, accepted: list[Parcel]) -> Iterator[str]:
        """What a delivered message's turn was to send on has been sent on, once."""
        found = Counter((row.sender, row.target, row.content) for row in self.rows if row.message_id.startswith("turn-"))
        for parcel in accepted:
            sender = parcel.target
            for target, content in parcel.stops:
                if found[sender, target, content] != 1:
                    yield f"{parcel.message_id}: sent on {found[sender, target, content]} times from {sender} to {target}"
                sender = target

    def _doubled(self) -> Iterator[str]:
        yield from (f"{message_id}: {count} times in transcripts" for message_id, count in self.entries_of.items() if count > 1)
        told = Counter((entry.session, entry.text) for entry in self.entries if entry.text.rpartition("number ")[2][:1].isdigit())
        yield from (f"{session} was told {count} times: {text!r}" for (session, text), count in told.items() if count > 1)

    def _told_although_refused(self) -> Iterator[str]:
        """Neither a message that failed nor one that was never accepted may be in a transcript."""
        for entry in self.entries:
            row = self.by_id.get(entry.message_id)
            if row is None or row.status != "delivered":
                yield f"{entry.message_id}: in the transcript of {entry.session}, but {row.status if row else 'without a row'}"
        for number in self.record.refused:
            if f"chaos-{number}" in self.by_id:
                yield f"chaos-{number}: refused, but there is a row"

    def _out_of_order(self) -> Iterator[str]:
        """In the order of acceptance for each target, hence for each pair."""
        for session, told in self._told().items():
            for before, after in pairwise(row for row in told):
                if before.pk > after.pk:
                    yield f"{session}: {after.message_id} after {before.message_id}"

    def _numbers_out_of_order(self) -> Iterator[str]:
        """And in the order of sending for each pair: a client sends a number when the one before it has been accepted."""
        for session, told in self._told().items():
            for asker in ASKERS:
                numbers = [int(row.message_id[6:]) for row in told if row.sender == asker and row.message_id.startswith("chaos-")]
                if session != "doomed" and numbers != sorted(numbers):
                    yield f"{asker} to {session}: {numbers}"

    def _told(self) -> dict[str, list[Row]]:
        told = defaultdict(list)
        for entry in self.entries:
            if entry.message_id in self.by_id:
                told[entry.session].append(self.by_id[entry.message_id])
        return told

    # --- no false word ---------------------------------------------------------------------------------------------
    def _early(self) -> Iterator[str]:
        for entry in self.entries:
            row = self.by_id.get(entry.message_id)
            if row is None or row.settled_at is None:
                continue
            if entry.turn_state not in {"committed", "stopped"} or entry.committed_at is None or entry.committed_at > row.settled_at:
                yield f"{row.message_id}: settled at {row.settled_at}, its turn is {entry.turn_state} since {entry.committed_at}"

    def _failed_wrongly(self) -> Iterator[str]:
        allowed = {parcel.message_id: parcel.may_fail_as for parcel in self.parcels}
        for row in self.rows:
            if row.status == "failed" and row.reason != allowed.get(row.message_id, ""):
                yield f"{row.message_id}: failed as {row.reason}"

    def _notices(self) -> Iterator[str]:
        told = Counter(row.in_reply_to for row in self.rows if row.kind == "delivery_failure")
        for row in self.rows:
            expected = int(row.status == "failed" and row.kind != "delivery_failure" and bool(row.sender) and row.sender != "leaver")
            if told[row.message_id] != expected:
                yield f"{row.message_id}: {row.status}, {told[row.message_id]} notices"

    def _charged_wrongly(self) -> Iterator[str]:
        """Only a turn that raised is charged; whoever is killed costs no message anything."""
        for row in self.rows:
            most = 5 if row.content.startswith("!fail 99") else int(row.content.startswith("!fail 1"))
            if row.attempts > most:
                yield f"{row.message_id}: {row.attempts} attempts charged"

    def _attempts(self) -> Iterator[str]:
        outcomes = defaultdict(list)
        for one in self.tries:
            outcomes[one.message].append(one.outcome)
        for row in self.rows:
            settled = [outcome for outcome in outcomes[row.pk] if outcome in {"delivered", "stopped"}]
            if None in outcomes[row.pk] or len(settled) != int(row.status == "delivered"):
                yield f"{row.message_id}: {row.status}, attempts {outcomes[row.pk]}"

    def _not_executed(self) -> Iterator[str]:
        for row in self.rows:
            if row.status == "delivered" and row.target not in {*ASKERS, "probed"} and not self.executed[row.message_id]:
                yield f"{row.message_id}: delivered, and no turn of it was run"

    # --- figures ---------------------------------------------------------------------------------------------------
    @property
    def executed_again(self) -> int:
        """Messages whose turn ran to its end more than once; only one of them was committed."""
        return sum(count > 1 for count in self.executed.values())

    def recoveries(self, log: list[Shot]) -> list[tuple[float, float]]:
        """For each message that lost its worker: seconds until it was run again or settled, from its shot and from the last shot before."""
        shots = sorted(shot.at for shot in log if shot.what not in {"recovered", "up started again"})
        killed = {shot.owner: shot.at for shot in log if shot.owner and shot.what.startswith("kill")}
        found = []
        for at, again in self._interrupted(killed):
            found.append((again - at, again - max(shot for shot in shots if shot <= again)))
        return found

    def _interrupted(self, killed: dict[str, float]) -> Iterator[tuple[float, float]]:
        by_message = defaultdict(list)
        for one in self.tries:
            by_message[one.message].append(one)
        for tries in by_message.values():
            for one, following in zip(tries, [*tries[1:], None], strict=True):
                at = killed.get(one.owner)
                if at is None or one.finished_at is None or one.finished_at < at:
                    continue
                yield at, following.started_at if following else one.finished_at


def _messages(site: Site) -> list[Row]:
    found = site.rows(
        "SELECT id, message_id, sender_id, target, kind, content, status, reason, attempts, losses, in_reply_to, settled_at"
        " FROM agent_inbox_messages ORDER BY id"
    )
    return [Row(*(column or "" if at in {2, 7} else column for at, column in enumerate(row[:-1])), seconds(row[-1])) for row in found]


def _entries(site: Site) -> list[Entry]:
    found = site.rows(
        "SELECT e.session_id, e.message_id, e.text, t.state, t.finished_at FROM sessions_app_transcriptentry e"
        " LEFT JOIN sessions_app_turn t ON t.id = e.turn_id WHERE e.role = 'user' ORDER BY e.session_id, e.seq"
    )
    return [Entry(*row[:-1], seconds(row[-1])) for row in found]


def _tries(site: Site) -> list[Try]:
    found = site.rows("SELECT message_id, owner, started_at, finished_at, outcome FROM inbox_app_attempt ORDER BY message_id, number")
    return [Try(message, owner, seconds(started) or 0, seconds(finished), outcome) for message, owner, started, finished, outcome in found]


def _executed(effects: Path) -> Counter[str]:
    lines = effects.read_text().splitlines() if effects.exists() else []
    return Counter(effect["message_id"] for effect in map(json.loads, lines) if effect["outcome"] in {"ok", "stopped"})
