"""What must be true after every deed, whatever it was: design section 1, as comparisons of rows before and after."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from tests.simulation.rows import AttemptRow, MessageRow, Rows

ALONE_DEATHS = 3  # the third death in a process of its own fails the message
NEVER_NOTICED = {"delivery_failure", "subagent_task"}
MOVES = {
    "pending": {"processing", "failed", "delivered"},
    "processing": {"processing", "pending", "delivered", "failed"},
    "delivered": set(),
    "failed": set(),
}


@dataclass
class Story:
    """What the simulation knows of a message beside its row: counted from the deeds, never read."""

    charged: int = 0
    losses: int = 0
    deferrals: int = 0
    redeliveries: int = 0
    deaths_alone: int = 0  # since it was last redelivered
    commits: int = 0
    may_try: int = 5


@dataclass
class Deed:
    """What is being done, as far as a law asks."""

    now: datetime
    accepts: str = ""  # id of the message that may be new
    withdraws: int = 0
    by_sender: bool = False
    redelivers: int = 0
    defers: int = 0
    stops: frozenset[str] = frozenset()  # sessions whose waiting tasks are cancelled


def check(before: Rows, after: Rows, deed: Deed) -> None:
    settled_stays_settled(before, after, deed)
    only_the_accepted_is_new(before, after, deed)
    each_failure_has_its_reason(before, after, deed)
    each_failure_is_told_once(before, after, deed)
    what_starts_may_start(before, after, deed)
    delivered_means_committed(before, after)
    attempts_are_numbered(before, after)
    epochs_grow(before, after)
    one_at_a_time(after)
    transcripts_only_grow(before, after)


def settled_stays_settled(before: Rows, after: Rows, deed: Deed) -> None:
    for pk, was in before.messages.items():
        row = after.messages[pk]
        if was.status == "failed" and pk == deed.redelivers:
            continue
        if was.is_waiting:
            assert row.status in MOVES[was.status] | {was.status}, f"{was.message_id}: {was.status} became {row.status}"
        else:
            assert row == was, f"settled and yet changed: {was} became {row}"


def only_the_accepted_is_new(before: Rows, after: Rows, deed: Deed) -> None:
    for row in new_messages(before, after):
        if row.kind != "delivery_failure":
            assert row.message_id == deed.accepts, f"nobody sent {row}"


def new_messages(before: Rows, after: Rows) -> list[MessageRow]:
    return [row for pk, row in after.messages.items() if pk not in before.messages]


def newly_failed(before: Rows, after: Rows) -> list[MessageRow]:
    return [
        row for pk, row in after.messages.items()
        if row.status == "failed" and (pk not in before.messages or before.messages[pk].status != "failed")
    ]  # fmt: skip


def each_failure_has_its_reason(before: Rows, after: Rows, deed: Deed) -> None:
    true = {
        "target_gone": lambda row: row.session_id in before.archived,
        "expired": lambda row: (row.valid_until is not None and row.valid_until <= deed.now) or row.pk == deed.defers,
        "withdrawn": lambda row: row.pk == deed.withdraws or (row.kind == "subagent_task" and row.session_id in deed.stops),
        "exhausted": lambda row: row.attempts == row.max_attempts,
        "timeout": lambda row: row.attempts == row.max_attempts or row.is_past_its_task(deed.now),
        "rejected": lambda row: False,  # whoever is given up here has had its committed turn
        "worker_died": lambda row: row.losses == 1 + ALONE_DEATHS,
    }
    for row in newly_failed(before, after):
        assert true[row.reason](row), f"failed as {row.reason} without cause: {row}"


def each_failure_is_told_once(before: Rows, after: Rows, deed: Deed) -> None:
    expected = {
        f"failure-{row.pk}-{row.redeliveries}": (row.sender_id, row.message_id, row.hops + 1)
        for row in newly_failed(before, after)
        if row.sender_id and row.sender_id not in before.archived and row.kind not in NEVER_NOTICED
        and not (row.pk == deed.withdraws and deed.by_sender)
    }
    told = [row for row in new_messages(before, after) if row.kind == "delivery_failure"]
    assert {row.message_id: (row.session_id, row.in_reply_to, row.hops) for row in told} == expected
    assert all(row.sender_id is None for row in told)


def what_starts_may_start(before: Rows, after: Rows, deed: Deed) -> None:
    for row in after.messages.values():
        begun = [one for one in after.attempts[row.pk] if one not in before.attempts.get(row.pk, []) and one.outcome is None]
        if begun:
            assert row.status == "processing"
            _may_start(before, after, deed, row=row, attempt=begun[-1])


def _may_start(before: Rows, after: Rows, deed: Deed, *, row: MessageRow, attempt: AttemptRow) -> None:
    lane, turn, waited = after.lanes[str(row.lane)], after.turns[attempt.turn_id], before.messages.get(row.pk, row)
    assert (attempt.owner, attempt.epoch) == (lane.lease_owner, lane.epoch), "begun without the lane"
    assert (turn.state, turn.message_ids, turn.session_id, turn.epoch) == ("running", [row.message_id], row.session_id, lane.epoch)
    assert before.lanes[lane.key].paused_at is None, f"{row.message_id} started in a paused lane"
    assert row.session_id not in after.archived, f"{row.message_id} started at an archived target"
    assert row.valid_until is None or row.valid_until > deed.now, f"{row.message_id} started after its validity"
    assert waited.available_at <= deed.now, f"{row.message_id} started before its time"
    assert row.attempts < row.max_attempts, f"{row.message_id} had no attempt left"
    assert not after.is_marked(row), f"{row.message_id} had its committed turn already"
    assert all(one.outcome != "stopped" for one in after.attempts[row.pk]), f"{row.message_id} was stopped and is tried again"
    was_head = waited.status == "processing" or after.waiting_in(lane.key)[0].pk == row.pk
    assert was_head, f"{row.message_id} overtook the head of its lane"


def delivered_means_committed(before: Rows, after: Rows) -> None:
    for row in after.messages.values():
        if row.status == "failed":
            assert not after.is_marked(row), f"failed, and yet its turn was committed: {row}"
        if row.status == "delivered" and not after.is_marked(row):
            assert after.attempts[row.pk][-1].outcome == "stopped", f"delivered without a turn: {row}"


def attempts_are_numbered(before: Rows, after: Rows) -> None:
    for pk, made in after.attempts.items():
        row = after.messages[pk]
        assert [one.number for one in made] == list(range(1, len(made) + 1)), f"attempts of {row.message_id}: {made}"
        assert all(one.outcome for one in made[:-1]), f"an attempt of {row.message_id} was left open: {made}"
        assert row.status == "processing" or all(one.outcome for one in made), f"{row} has an open attempt: {made}"
        assert row.status != "processing" or made, f"{row} was never attempted"
        for was, one in zip(before.attempts.get(pk, []), made, strict=False):
            assert one == was or was.outcome is None, f"a finished attempt changed: {was} became {one}"
            assert (one.owner, one.epoch, one.turn_id) == (was.owner, was.epoch, was.turn_id)


def epochs_grow(before: Rows, after: Rows) -> None:
    for key, was in before.lanes.items():
        lane = after.lanes[key]
        assert lane.epoch >= was.epoch, f"the epoch of {key} went back"
        if lane.lease_owner not in (None, was.lease_owner):
            assert lane.epoch == was.epoch + 1, f"{key} went to another holder under the same epoch"


def one_at_a_time(after: Rows) -> None:
    for lane in after.lanes:
        running = [row.message_id for row in after.waiting_in(lane) if row.status == "processing"]
        assert len(running) <= 1, f"{running} are in processing at once in {lane}"
    sessions = [turn.session_id for turn in after.turns.values() if turn.state == "running"]
    assert len(sessions) == len(set(sessions)), "two turns of one session run at once"


def transcripts_only_grow(before: Rows, after: Rows) -> None:
    for session, entries in after.entries.items():
        assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1)), f"gaps in the transcript of {session}"
        assert entries[: len(before.entries.get(session, []))] == before.entries.get(session, [])
        asked = [entry.message_id for entry in entries if entry.role == "user"]
        assert len(asked) == len(set(asked)), f"two committed turns of one message in {session}: {asked}"
        assert {(session, name) for name in asked} == {mark for mark in after.markers if mark[0] == session}


# --- What needs more than two pictures ---------------------------------------------------------------------------
def nothing_is_stranded(rows: Rows, *, latest: datetime, lease: timedelta) -> None:
    """A lane with mail is looked at in time: due may be too early, never too late. ``latest``: the furthest clock so far."""
    for key, lane in rows.lanes.items():
        head = rows.head_of(key)
        if lane.lease_owner is not None:
            assert lane.due_at == lane.lease_until, f"{lane} is held and not due at the end of its lease"
            assert lane.lease_until <= latest + lease
        elif head is not None:
            assert lane.due_at is not None, f"nobody will ever look at {head}"
            assert lane.due_at <= max(head.available_at, latest), f"{lane} is due too late for {head}"


def counters_equal_stories(rows: Rows, stories: dict[int, Story]) -> None:
    for pk, story in stories.items():
        row = rows.messages[pk]
        counted = (story.charged, story.losses, story.deferrals, story.redeliveries, story.may_try)
        assert (row.attempts, row.losses, row.deferrals, row.redeliveries, row.max_attempts) == counted, f"{row} and {story}"
        assert story.commits == int(rows.is_marked(row)), f"{story.commits} committed turns of {row}"
        assert row.attempts <= row.max_attempts
        if story.deaths_alone >= ALONE_DEATHS:
            assert not row.is_waiting, f"{row} killed its process {story.deaths_alone} times and may go on"


def turns_are_in_order(rows: Rows, committed: dict[str, list[int]], stories: dict[int, Story]) -> None:
    """The committed turns of a target are in order of acceptance, save for what was delivered again."""
    for session, order in committed.items():
        first_time = [pk for pk in order if not stories[pk].redeliveries]
        assert first_time == sorted(first_time), f"out of order in {session}: {first_time}"
        names = [rows.messages[pk].message_id for pk in order]
        assert names == [entry.message_id for entry in rows.entries.get(session, []) if entry.role == "user"]


def all_is_settled(rows: Rows, stories: dict[int, Story], *, now: datetime) -> None:
    """At the end: no promise is open, no lane is held, and nobody looks at empty ones for ever."""
    for lane in rows.lanes.values():
        assert lane.lease_owner is None, f"nothing waits, and yet {lane}"
        assert lane.due_at is None or lane.due_at > now or lane.paused_at, f"nothing waits, and yet {lane}"
    assert all(turn.state != "running" for turn in rows.turns.values())
    for row in _settled(rows.messages.values()):
        stopped = bool(rows.attempts[row.pk]) and rows.attempts[row.pk][-1].outcome == "stopped"
        assert stories[row.pk].commits == 1 or row.status == "failed" or stopped, f"{row.message_id} had no turn"


def _settled(messages: Iterable[MessageRow]) -> Iterable[MessageRow]:
    for row in messages:
        assert row.status in {"delivered", "failed"}, f"accepted and never settled: {row}"
        yield row
