"""A small world of agents, dispatchers and operators on the real engine, under a clock that nobody reads but passes on.

Every method that does something to the product is a deed: it does it through the product's own verbs, compares the rows
before and after with the laws, and keeps count of what must be true. Arguments are plain numbers that pick among what
there is, so a list of deeds is a script that can be played again.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from inbox_app import transitions
from inbox_app.errors import HopLimit, MailboxFull, MessageIdConflict, NotPending, TargetGone, TaskEnded
from inbox_app.judgement import Judgement, Verdict
from inbox_app.models import Attempt, Message
from inbox_app.transitions import Acknowledgement, Draft, Judged, Next, Setback, Work
from sessions_app import actions, lanes, turns
from sessions_app.lanes import Hold, LeaseLost
from sessions_app.models import Holder, Session, TranscriptEntry
from sessions_app.turns import Commit, Entry, Mark
from suzent_site.processes import boot_id, this_host, uptime
from tests.simulation import bell, laws
from tests.simulation.crashes import Died, dying_at
from tests.simulation.laws import Deed, Story
from tests.simulation.rows import LaneRow, MessageRow, Rows, clear, look

T = TypeVar("T")
START = datetime(2030, 1, 1, tzinfo=UTC)
MAX_HOPS, LANE_LIMIT = 3, 5  # small, so that they are reached
SOON = timedelta(minutes=30)  # longer than any backoff and deferral here: by then everything must have settled
FOREVER = 1e9  # seconds; a renewal as far in the future of the uptime is always recent, one in the past never
WAITS = (0, 2, 60, 600)  # seconds until a retry
COSTS: dict[str, dict[str, Any]] = {
    "raised": {"charged": True},
    "timed_out": {"charged": True, "timed_out": True},
    "unavailable": {"deferred": True, "outcome": Attempt.Outcome.RELEASED},
    "drained": {"outcome": Attempt.Outcome.RELEASED},
    "lost": {"outcome": Attempt.Outcome.LOST},
    "died_alone": {"died_alone": True, "outcome": Attempt.Outcome.LOST},
}


@dataclass
class Run:
    """What a dispatcher has in hand: a turn to be run, or a message to be settled."""

    item: Next
    done: str = ""  # how its turn was committed
    sent: Counter[tuple[str, str]] = field(default_factory=Counter)

    @property
    def hold(self) -> Hold:
        return self.item.hold


@dataclass
class Worker:
    """A dispatcher: on this machine, where its uptime protects its leases from a clock that steps, or on another."""

    name: str
    local: bool
    stalled: bool = False
    silent: float = 0.0  # seconds since its last renewal, as a clock counts that nobody sets
    runs: list[Run] = field(default_factory=list)

    def is_protected(self) -> bool:
        return self.local and self.silent < lanes.lease().total_seconds()


class World:
    def __init__(self) -> None:
        clear()
        self.now = self.latest = START
        self.agents = self._open_sessions()
        self.rows = look()
        self.workers: list[Worker] = []
        self.dead: list[Worker] = []
        self.ghosts: list[Run] = []  # what dispatchers still believe to hold after they let go: hung threads
        self.holders: dict[str, Hold] = {}
        self.stories: dict[int, Story] = {}
        self.committed: dict[str, list[int]] = {}
        self.deeds = self._hired = self._named = 0
        self.sound = True
        for local in (True, True, False):
            self._hire(local=local)

    def _open_sessions(self) -> list[Session]:
        office, elsewhere = actions.create_project("office"), actions.create_project("elsewhere")
        planner = actions.open_session(office, agent_id="planner", now=self.now)
        return [
            planner,
            actions.open_session(office, agent_id="writer", parent=planner, now=self.now),
            actions.open_session(office, agent_id="critic", now=self.now),
            actions.open_session(elsewhere, agent_id="stranger", now=self.now),
        ]

    def _hire(self, *, local: bool) -> None:
        self._hired += 1
        worker = Worker(f"shift-{self._hired}", local)
        self.workers.append(worker)
        Holder.objects.create(
            owner=worker.name, kind=Holder.Kind.SHIFT, host=this_host() if local else "another machine", boot_id=boot_id(),
            pid=self._hired, process_started=1, beat_at=self.now, renewed_uptime=uptime() + FOREVER,
        )  # fmt: skip

    # --- doing and comparing ---------------------------------------------------------------------------------------
    def _do(self, act: Callable[[], T], *, dies_at: int = 0, looks_after: bool = False, **about: Any) -> T | bool | None:
        """Do it and hold the outcome against every law. None: the process died at that statement, and nothing changed.

        ``looks_after``: it reads once more after its commit; True: it died there, and all is done.
        """
        self.deeds += 1
        self.sound = False
        before, died = self.rows, False
        try:
            with dying_at(dies_at):
                answer = act()
        except Died:
            died = True
        self.rows = look()
        laws.check(before, self.rows, Deed(self.now, **about))
        if not died:
            return answer
        assert looks_after or self.rows == before, "died in the middle, and half of it was done"
        return None if self.rows == before else True

    def _refused(self, act: Callable[[], object], error: type[Exception]) -> None:
        before = self.rows
        try:
            self._do(act)
        except error:
            self.rows = look()
            assert self.rows == before, f"{error.__name__}, and yet something changed"
            self._is_sound()
        else:
            raise AssertionError(f"should have been refused as {error.__name__}")

    def _is_sound(self) -> None:
        """The end of a deed: the counts are up to date."""
        self._write_stories_of_notices()
        laws.counters_equal_stories(self.rows, self.stories)
        laws.turns_are_in_order(self.rows, self.committed, self.stories)
        laws.nothing_is_stranded(self.rows, latest=self.latest, lease=lanes.lease())
        for key, lane in self.rows.lanes.items():
            hold = self.holders.get(key)
            assert lane.lease_owner == (hold.owner if hold else None), f"{hold} should hold {lane}"
            assert hold is None or lane.epoch == hold.epoch
        self.sound = True

    def _write_stories_of_notices(self) -> None:
        for pk, row in self.rows.messages.items():
            if pk not in self.stories:
                assert row.kind == "delivery_failure"
                self.stories[pk] = Story()

    def _unchanged(self, before: Rows) -> None:
        assert self.rows == before, "who has lost the lane has changed something"
        self._is_sound()

    def _agent(self, pick: int) -> Session:
        return self.agents[pick % len(self.agents)]

    def _place_of(self, run: Run) -> int:
        return next(at for at, agent in enumerate(self.agents) if agent.lane_key == run.hold.key)

    def _message(self, pick: int) -> Message:
        """Counted from the newest."""
        pks = sorted(self.rows.messages, reverse=True)
        return Message.objects.get(pk=pks[pick % len(pks)])

    def awake(self) -> list[Worker]:
        return [worker for worker in self.workers if not worker.stalled]

    def _worker(self, pick: int) -> Worker:
        return self.awake()[pick % len(self.awake())]

    def runs(self, kind: type[Next] | None = None) -> list[tuple[Worker, Run]]:
        return [(worker, run) for worker in self.awake() for run in worker.runs if kind is None or isinstance(run.item, kind)]

    def _holds(self, run: Run) -> bool:
        return self.holders.get(run.hold.key) == run.hold

    def _row(self, run: Run) -> MessageRow:
        return self.rows.messages[run.item.message.pk]

    # --- what senders do -------------------------------------------------------------------------------------------
    def send(self, sender: int, to: int, *, content: int = 0, kind: int = 0, valid_for: int = 0, reply_to: int = 0, dies_at: int = 0) -> None:
        """``sender`` beyond the agents: a person. ``reply_to``: to the so-many-th newest message of the project; 0: none."""
        target = self._agent(to)
        by = self.agents[sender] if sender < len(self.agents) and self.agents[sender].project_id == target.project_id else None
        what = Message.Kind.USER_MESSAGE if by is None else (Message.Kind.AGENT_MESSAGE, Message.Kind.SUBAGENT_TASK)[kind % 2]
        self._named += 1
        self._accept(Draft(
            project_id=target.project_id, target=target, content=f"text {content}", kind=what, message_id=f"m{self._named}",
            sender_id=by and by.pk, sender_label="" if by else "someone",
            valid_for=timedelta(seconds=valid_for) if valid_for else None, in_reply_to=self._replied(target, reply_to),
        ), dies_at=dies_at)  # fmt: skip

    def _replied(self, target: Session, reply_to: int) -> str:
        inside = [row.message_id for row in self.rows.messages.values() if row.project_id == target.project_id]
        return inside[-reply_to] if 0 < reply_to <= len(inside) else ""

    def send_again(self, message: int, *, changed: bool) -> None:
        """The same id once more: the same answer, or a conflict if it says something else."""
        row = self._message(message)
        self._accept(Draft(
            project_id=row.project_id, target=row.session, content=row.content + ("!" if changed else ""), kind=Message.Kind(row.kind),
            message_id=row.message_id, sender_id=row.sender_id, sender_label=row.sender_label, payload=row.payload, ours=True,
        ))  # fmt: skip

    def send_from_turn(self, run: int, to: int, *, content: int = 0) -> None:
        """What an agent sends while its turn runs: the id is made of what it handles, so a turn run again makes the same."""
        _, running = self.runs(Work)[run % len(self.runs(Work))]
        self._send_from(running, to, content=content)

    def _send_from(self, running: Run, to: int, *, content: int) -> None:
        own = running.item.message
        others = [agent for agent in self.agents if agent.project_id == own.project_id and agent.pk != own.session_id]
        if not others:
            return
        target = others[to % len(others)]
        text = f"from a turn {content}"
        number = running.sent[target.pk, text] + 1
        draft = Draft(
            project_id=own.project_id, target=target, content=text, kind=Message.Kind.AGENT_MESSAGE, ours=True, hold=running.hold,
            message_id=f"turn-{own.message_id}-{target.pk}-{content}-{number}", sender_id=own.session_id,
        )  # fmt: skip
        if self._refusal_of(draft)[0] is None:
            running.sent[target.pk, text] = number
        self._accept(draft)

    def _accept(self, draft: Draft, *, dies_at: int = 0) -> None:
        before, rang = self.rows, len(bell.rung)
        refusal, hops = self._refusal_of(draft)
        if refusal is not None:
            return self._refused(lambda: transitions.accept(draft, now=self.now), refusal)
        earlier = before.named(draft.project_id, draft.message_id)
        accepted = self._do(lambda: transitions.accept(draft, now=self.now), dies_at=dies_at, accepts=draft.message_id)
        if accepted is None:
            return self._is_sound()
        assert accepted.created == (earlier is None)
        if earlier is not None:
            assert (accepted.message.pk, self.rows.messages) == (earlier.pk, before.messages)
            return self._is_sound()
        row = self.rows.messages[accepted.message.pk]
        assert (row.status, row.content, row.hops, row.sender_id) == ("pending", draft.content, hops, draft.sender_id)
        assert len(bell.rung) > rang, "accepted, and nobody was woken"
        self.stories[row.pk] = Story()
        self._is_sound()

    def _refusal_of(self, draft: Draft) -> tuple[type[Exception] | None, int]:
        """What must become of it: the error, or the hops it will have."""
        earlier = self.rows.named(draft.project_id, draft.message_id)
        hops = self._hops_of(draft)
        same = earlier and (earlier.content, earlier.session_id, earlier.sender_id) == (draft.content, draft.target.pk, draft.sender_id)
        rules: list[tuple[bool, type[Exception]]] = [
            (draft.hold is not None and self.holders.get(draft.hold.key) != draft.hold, LeaseLost),
            (earlier is not None and not same, MessageIdConflict),
            (earlier is None and draft.target.pk in self.rows.archived, TargetGone),
            (earlier is None and len(self.rows.waiting_in(draft.target.lane_key)) >= LANE_LIMIT, MailboxFull),
            (earlier is None and hops > MAX_HOPS, HopLimit),
        ]
        return next((error for applies, error in rules if applies), None), hops

    def _hops_of(self, draft: Draft) -> int:
        turn = self.rows.running_of(draft.sender_id) if draft.sender_id else None
        names = {*(turn.message_ids if turn else []), draft.in_reply_to}
        causes = [row.hops for row in self.rows.messages.values() if row.project_id == draft.project_id and row.message_id in names]
        return max(causes) + 1 if causes else 0

    # --- what dispatchers do ---------------------------------------------------------------------------------------
    def claim(self, worker: int, *, limit: int = 2, dies_at: int = 0) -> list[Run]:
        claimer = self._worker(worker)
        before, takeable = self.rows, self._takeable()
        found = self._do(lambda: transitions.claim(claimer.name, now=self.now, limit=limit), dies_at=dies_at)
        if found is None:
            self._die(claimer)
            self._is_sound()
            return []
        taken = {key for key, lane in self.rows.lanes.items() if lane.epoch != before.lanes[key].epoch}
        assert taken <= takeable, f"took {taken} of {takeable}"
        assert len(taken) == min(limit, len(takeable)), f"left {takeable - taken} with a limit of {limit}"
        runs = [Run(item) for item in found]
        claimer.runs += runs
        self._hand_over(taken, runs)
        for key in taken:
            self._count_loss(before, key)
        self._is_sound()
        return runs

    def _takeable(self) -> set[str]:
        protected = {worker.name for worker in [*self.workers, *self.dead] if worker.is_protected()}
        return {key for key, lane in self.rows.lanes.items() if self._is_takeable(lane, protected)}

    def _is_takeable(self, lane: LaneRow, protected: set[str]) -> bool:
        free = lane.lease_until is None or lane.lease_until <= self.now
        is_due = lane.due_at is not None and lane.due_at <= self.now
        return free and is_due and lane.paused_at is None and lane.lease_owner not in protected

    def _hand_over(self, taken: set[str], runs: list[Run]) -> None:
        """Those lanes have a new holder now, or none if nothing was to be done in them."""
        for key in taken:
            self.holders.pop(key, None)
        self.holders |= {run.hold.key: run.hold for run in runs}
        for key in taken - {run.hold.key for run in runs}:
            head = self.rows.head_of(key)
            assert head is None or head.available_at > self.now, f"{head} was due and was not taken"

    def _count_loss(self, before: Rows, key: str) -> None:
        """What was running there has been lost with its process: the first time is free and makes it a suspect."""
        head = before.head_of(key)
        if head is None or head.status != "processing" or before.is_marked(head):
            return
        turn = before.running_of(head.session_id)
        stopped = turn is not None and turn.stop_requested_at is not None
        assert before.attempts[head.pk][-1].outcome or self.rows.attempts[head.pk][len(before.attempts[head.pk]) - 1].outcome == (
            "stopped" if stopped else "lost"
        )
        if not stopped:
            self.stories[head.pk].losses = max(self.stories[head.pk].losses, 1)

    def commit(self, run: int, *, together: bool = False, dies_at: int = 0) -> None:
        """``together``: with all other turns that its dispatcher has in hand, in one transaction."""
        worker, running = self.runs(Work)[run % len(self.runs(Work))]
        if not self._commit([one for one in worker.runs if isinstance(one.item, Work)] if together else [running], dies_at=dies_at):
            self._die(worker)

    def _commit(self, runs: list[Run], *, dies_at: int = 0) -> bool:
        """False: its process died before."""
        before = self.rows
        states = self._do(lambda: turns.commit([_commit_of(run.item) for run in runs], now=self.now), dies_at=dies_at)
        if states is None:
            self._is_sound()
            return False
        mine = [run for run in runs if self._holds(run)]
        fresh = [run for run in mine if not run.done]
        assert fresh or self.rows == before, "nothing was to be committed, and yet something changed"
        for run in fresh:
            self._write_commit(run, stopped=before.turns[run.item.turn.pk].stop_requested_at is not None)
        assert states == {run.item.turn.pk: run.done for run in mine}
        self._is_sound()
        return True

    def _write_commit(self, run: Run, *, stopped: bool) -> None:
        message = run.item.message
        run.done = "stopped" if stopped else "committed"
        self.stories[message.pk].commits += 1
        self.committed.setdefault(message.session_id, []).append(message.pk)

    def acknowledge(self, run: int, *, go_on: bool = False, together: bool = False, dies_at: int = 0, answer_lost: bool = False) -> None:
        """Settle what was committed. ``answer_lost``: the connection breaks after the commit, so it is said again."""
        worker, running = self.ready()[run % len(self.ready())]
        runs = [one for other, one in self.ready() if other is worker] if together else [running]
        for is_last in (False, True) if answer_lost else (True,):
            found = self._acknowledge(runs, go_on=go_on, dies_at=dies_at)
            if found is None:
                return self._die(worker)
            if is_last:
                worker.runs += found
        for run_done in runs:
            self._let_go(worker, run_done)
        return None

    def _let_go(self, worker: Worker, run: Run) -> None:
        worker.runs.remove(run)
        self.ghosts.append(run)

    def ready(self) -> list[tuple[Worker, Run]]:
        return [(worker, run) for worker, run in self.runs() if run.done or self._is_found_done(run)]

    def _is_found_done(self, run: Run) -> bool:
        return isinstance(run.item, Judged) and run.item.judgement.verdict != Verdict.FAIL

    def _acknowledge(self, runs: list[Run], *, go_on: bool, dies_at: int = 0) -> list[Run] | None:
        """What is to be done next. None: its process died before."""
        before = self.rows
        acks = [Acknowledgement(run.hold, run.item.message, self._outcome_of(run), go_on) for run in runs]
        found = self._do(lambda: transitions.acknowledge(acks, now=self.now), dies_at=dies_at)
        if found is None:
            self._is_sound()
            return None
        mine = [run for run in runs if self._holds(run)]
        assert mine or self.rows == before, "who has lost the lane has changed something"
        assert all(self._row(run).status == "delivered" for run in mine)
        assert go_on or not found
        following = [Run(one) for one in found]
        self._go_on(before, mine, following, go_on=go_on)
        self._is_sound()
        return following

    def _outcome_of(self, run: Run) -> Attempt.Outcome:
        found_stopped = isinstance(run.item, Judged) and run.item.judgement.verdict == Verdict.STOPPED
        return Attempt.Outcome.STOPPED if run.done == "stopped" or found_stopped else Attempt.Outcome.DELIVERED

    def _go_on(self, before: Rows, settled: list[Run], following: list[Run], *, go_on: bool) -> None:
        """Lanes that are gone on with are held still, the others have been left."""
        going = {run.hold.key for run in settled if go_on and before.lanes[run.hold.key].paused_at is None}
        self._hand_over(going, following)
        for run in settled:
            if run.hold.key not in going:
                del self.holders[run.hold.key]
            elif not before.messages[run.item.message.pk].is_waiting:  # it had been said before, and the next had begun
                self._count_loss(before, run.hold.key)

    def release(self, run: int, how: str, *, wait: int = 0, dies_at: int = 0) -> None:
        """A turn that came to nothing, or whose outcome the dispatcher did not see."""
        worker, running = self.runs(Work)[run % len(self.runs(Work))]
        if self._release(running, how, wait=wait, dies_at=dies_at):
            return self._die(worker)
        self._let_go(worker, running)

    def _release(self, running: Run, how: str, *, wait: int, dies_at: int = 0) -> bool:
        """True: its process died before."""
        work, before = running.item, self.rows
        costs = COSTS["lost" if how == "died_alone" and not work.alone else how]
        setback = Setback("boom", self.now + timedelta(seconds=WAITS[wait % len(WAITS)]), **costs)
        released = self._do(lambda: transitions.release(work, setback, now=self.now), dies_at=dies_at, defers=work.message.pk)
        if released is None:
            self._is_sound()
            return True
        if not self._holds(running):
            assert not released
            self._unchanged(before)
            return False
        assert released
        self.holders.pop(running.hold.key)
        self._see_what_it_cost(before, running, setback)
        self._is_sound()
        return False

    def _see_what_it_cost(self, before: Rows, running: Run, setback: Setback) -> None:
        row, story = self._row(running), self.stories[running.item.message.pk]
        if before.is_marked(row) or before.turns[running.item.turn.pk].stop_requested_at is not None:
            assert row.status == "delivered"
            return
        story.charged += setback.charged
        story.deferrals += setback.deferred
        story.deaths_alone += setback.died_alone
        story.losses += setback.died_alone or (setback.timed_out and story.losses == 0)
        used_up = story.deaths_alone >= laws.ALONE_DEATHS or (setback.charged and story.charged >= story.may_try)
        used_up = used_up or row.is_past_its_task(self.now)
        if not setback.deferred:
            assert row.status == ("failed" if used_up else "pending")
        assert row.status == "failed" or row.available_at == setback.retry_at

    def settle(self, run: int, *, dies_at: int = 0) -> None:
        """Fail what a claim judged so."""
        judged = self.judged()
        worker, running = judged[run % len(judged)]
        if self._fail(running, dies_at=dies_at):
            return self._die(worker)
        self._let_go(worker, running)

    def judged(self) -> list[tuple[Worker, Run]]:
        return [(worker, run) for worker, run in self.runs(Judged) if not self._is_found_done(run)]

    def _fail(self, running: Run, *, dies_at: int = 0) -> bool:
        """True: its process died before."""
        before = self.rows
        failed = self._do(lambda: transitions.fail(running.item, now=self.now), dies_at=dies_at)
        if failed is None:
            self._is_sound()
            return True
        if not self._holds(running):
            assert not failed
            self._unchanged(before)
            return False
        self.holders.pop(running.hold.key)
        self._is_sound()
        return False

    def work(self, worker: int, how: str, *, times: int = 1, wait: int = 0) -> None:
        """A stretch of work: take what is due, end each turn so, and again when the time of that has come."""
        for _ in range(times):
            if not self.awake():
                return
            claimer = self._worker(worker)
            for run in self.claim(worker, limit=len(self.agents)):
                if claimer in self.workers:
                    self._end(claimer, run, how, wait=wait)
            self.pass_time(WAITS[wait % len(WAITS)])

    def _end(self, worker: Worker, run: Run, how: str, *, wait: int = 0) -> None:
        if isinstance(run.item, Judged):
            self._end_judged(worker, run, go_on=how == "deliver_on")
        elif how == "die" and not run.item.alone:
            return self._die(worker)
        elif how in COSTS or how == "die":
            self._release(run, "died_alone" if how == "die" else how, wait=wait)
        else:
            self._end_well(worker, run, how, wait=wait)
        return self._let_go(worker, run)

    def _end_well(self, worker: Worker, run: Run, how: str, *, wait: int) -> None:
        """Its turn is committed. ``doubt``, ``refuse``: its dispatcher does not know it, and puts it back or gives it up."""
        if how == "deliver_and_send":
            self._send_from(run, wait, content=0)
        self._commit([run])
        if how == "doubt":
            self._release(run, "raised", wait=wait)
        elif how == "refuse":
            self._fail(Run(Judged(run.hold, run.item.message, Judgement(Verdict.FAIL, Message.Reason.REJECTED))))
        elif how == "deliver_paused":
            self._acknowledge_paused(run)
        else:
            worker.runs += self._acknowledge([run], go_on=how == "deliver_on") or []

    def _acknowledge_paused(self, run: Run) -> None:
        agent = self._place_of(run)
        self.pause(agent)
        assert self._acknowledge([run], go_on=True) == [], "went on in a paused lane"
        self.resume(agent)

    def _end_judged(self, worker: Worker, run: Run, *, go_on: bool) -> None:
        if self._is_found_done(run):
            worker.runs += self._acknowledge([run], go_on=go_on) or []
        else:
            self._fail(run)

    def haunt(self, ghost: int, how: str) -> None:
        """A hung thread comes to itself long after its lane has gone: it may change nothing."""
        lost = self.lost()
        run = lost[-1 - ghost % len(lost)]
        if isinstance(run.item, Judged):
            self._fail(run)
        elif how == "commit":
            self._commit([run])
        elif how == "send":
            self._send_from(run, ghost, content=7)
        elif how == "acknowledge":
            self._acknowledge([run], go_on=True)
        else:
            self._release(run, "raised", wait=0)

    def lost(self) -> list[Run]:
        """What somebody has in hand still, or had, and holds no longer."""
        in_hand = [run for worker in self.workers for run in worker.runs]
        return [run for run in [*self.ghosts, *in_hand] if not self._holds(run)]

    # --- what befalls dispatchers ------------------------------------------------------------------------------------
    def die(self, worker: int) -> None:
        self._die(self._worker(worker))

    def _die(self, worker: Worker) -> None:
        self.workers.remove(worker)
        self.dead.append(worker)
        self._hire(local=worker.local)

    def bury(self, corpse: int) -> None:
        """The watchdog finds that its pid is gone, or kills one that is stopped past its lease."""
        if self.dead:
            self._bury(self.dead[corpse % len(self.dead)])

    def _bury(self, worker: Worker) -> None:
        self.dead.remove(worker)
        held = [key for key, hold in self.holders.items() if hold.owner == worker.name]
        assert self._do(lambda: lanes.end_leases(worker.name, now=self.now)) == len(held)
        Holder.objects.filter(pk=worker.name).delete()
        for key in held:
            del self.holders[key]
        self._is_sound()

    def stall(self, worker: int) -> None:
        self._worker(worker).stalled = True

    def oversleep(self, worker: int, *, alone: bool = False) -> None:
        """A dispatcher stalls past its lease, another takes what it held, and it comes back as a zombie.

        ``alone``: it takes its own lanes again, with its former turns still in hand.
        """
        sleeper = self._worker(worker)
        sleeper.stalled = True
        self.pass_time(lanes.lease().total_seconds() + 1)
        if alone:
            sleeper.stalled = False
            self.claim(self.awake().index(sleeper), limit=len(self.agents))
        elif self.awake():
            self.claim(worker, limit=len(self.agents))
        sleeper.stalled = False

    def come_back(self, worker: int) -> None:
        stalled = [worker for worker in self.workers if worker.stalled]
        if stalled:
            stalled[worker % len(stalled)].stalled = False

    # --- what operators do -------------------------------------------------------------------------------------------
    def withdraw(self, message: int, *, by_sender: bool, dies_at: int = 0) -> None:
        self._withdraw(self._message(message), by_sender=by_sender, dies_at=dies_at)

    def withdraw_one_that_waits(self, message: int) -> None:
        """Of what was tried and waits for its next try, with others waiting behind it."""
        waiting = self.put_back()
        self._withdraw(Message.objects.get(pk=waiting[message % len(waiting)]), by_sender=False)

    def put_back(self) -> list[int]:
        heads = [self.rows.head_of(key) for key in self.rows.lanes if len(self.rows.waiting_in(key)) > 1]
        return [head.pk for head in heads if head and head.status == "pending" and head.available_at > self.now]

    def _withdraw(self, row: Message, *, by_sender: bool, dies_at: int = 0) -> None:
        act = lambda: transitions.withdraw(row, who="olga", by_sender=by_sender, now=self.now)  # noqa: E731  # two uses, one line
        if row.status != "pending":
            return self._refused(act, NotPending)
        if self._do(act, dies_at=dies_at, looks_after=True, withdraws=row.pk, by_sender=by_sender):
            assert self.rows.messages[row.pk].reason == "withdrawn"
        self._is_sound()

    def redeliver(self, message: int, *, dies_at: int = 0) -> None:
        """Of what failed, the so-many-th newest."""
        failed = [pk for pk, row in self.rows.messages.items() if row.status == "failed"]
        row = Message.objects.get(pk=failed[-1 - message % len(failed)])
        act = lambda: transitions.redeliver(row, who="olga", now=self.now)  # noqa: E731  # two uses, one line
        refusal = self._refusal_to_redeliver(row)
        if refusal is not None:
            return self._refused(act, refusal)
        if self._do(act, dies_at=dies_at, looks_after=True, redelivers=row.pk):
            story = self.stories[row.pk]
            story.redeliveries += 1
            story.deaths_alone, story.losses, story.may_try = 0, min(story.losses, 1), story.charged + 5
            assert self.rows.messages[row.pk].status == "pending"
        self._is_sound()

    def _refusal_to_redeliver(self, row: Message) -> type[Exception] | None:
        if row.kind == Message.Kind.SUBAGENT_TASK:
            return TaskEnded
        return TargetGone if row.session_id in self.rows.archived else None

    def pause(self, agent: int) -> None:
        key = self._agent(agent).lane_key
        ran = self.rows.lanes[key].paused_at is None
        assert self._do(lambda: lanes.pause(key, now=self.now)) == ran
        self._is_sound()

    def resume(self, agent: int) -> None:
        self._do(lambda: lanes.resume(self._agent(agent).lane_key, now=self.now))
        self._is_sound()

    def archive(self, agent: int, *, dies_at: int = 0) -> None:
        session = self._agent(agent)
        before = self.rows
        below = frozenset(child.pk for child in self.agents if child.parent_id == session.pk)
        archived = self._do(lambda: actions.archive_session(session, now=self.now), dies_at=dies_at, stops=below)
        if archived is not None:
            assert archived == (session.pk not in before.archived)
        if archived:
            self.holders.pop(session.lane_key, None)
            assert self.rows.lanes[session.lane_key].epoch == before.lanes[session.lane_key].epoch + 1
        self._is_sound()

    def stop(self, agent: int) -> None:
        session = self._agent(agent)
        asked = [session.pk, *(child.pk for child in self.agents if child.parent_id == session.pk)]
        tasks = [row for row in self.rows.messages.values() if row.kind == "subagent_task" and row.status == "pending"]
        is_active = any(self.rows.running_of(pk) for pk in asked) or any(row.session_id in asked for row in tasks)
        assert self._do(lambda: actions.stop_session(session, now=self.now), stops=frozenset(asked)) == is_active
        assert all(self.rows.running_of(pk).stop_requested_at for pk in asked if self.rows.running_of(pk))
        self._is_sound()

    def stop_in_its_turn(self, run: int, *, dies: bool) -> None:
        """Stopped, and then its turn fails, or its dispatcher dies and another finds it."""
        worker, running = self.runs(Work)[run % len(self.runs(Work))]
        self.stop(self._place_of(running))
        if not dies:
            return self.release(run, "raised")
        self._die(worker)
        self.pass_time(lanes.lease().total_seconds() + 1)
        self.claim(0, limit=len(self.agents))
        return None

    def sweep(self) -> None:
        self._do(lambda: transitions.sweep(now=self.now))
        assert not [row for row in self.rows.messages.values() if row.status == "pending" and row.valid_until and row.valid_until <= self.now]
        self._is_sound()

    # --- time --------------------------------------------------------------------------------------------------------
    def pass_time(self, seconds: float) -> None:
        """Time passes for everybody; who is awake renews its leases meanwhile."""
        self.now += timedelta(seconds=seconds)
        self.latest = max(self.latest, self.now)
        for worker in [*self.workers, *self.dead]:
            self._pass_time_of(worker, seconds)

    def _pass_time_of(self, worker: Worker, seconds: float) -> None:
        was_protected = worker.is_protected()
        if worker in self.workers and not worker.stalled:
            worker.silent = 0.0
            self._renew(worker)
        else:
            worker.silent += seconds
        if was_protected != worker.is_protected():
            self._tell_renewal(worker)

    def _renew(self, worker: Worker) -> None:
        held = {key for key, hold in self.holders.items() if hold.owner == worker.name}
        if held:
            assert self._do(lambda: lanes.renew(worker.name, now=self.now)) == held
            self._is_sound()

    def _tell_renewal(self, worker: Worker) -> None:
        moment = uptime() + (FOREVER if worker.is_protected() else -FOREVER)
        Holder.objects.filter(pk=worker.name).update(renewed_uptime=moment)

    def step_clock(self, seconds: float) -> None:
        """Somebody sets the clock; no time passes."""
        self.now += timedelta(seconds=seconds)
        self.latest = max(self.latest, self.now)

    def set_clock_ahead(self, seconds: float, *, worker: int) -> None:
        """While lanes are held; who holds them lives and will not be taken for dead."""
        self.step_clock(seconds)
        self.claim(worker, limit=len(self.agents))

    # --- the end -----------------------------------------------------------------------------------------------------
    def drain(self) -> None:
        """Everybody dies, operators let go, and one honest dispatcher remains: soon every promise must have been kept.

        Without a clock that was set back not even the sweep is needed, nor anybody who finds the dead.
        """
        for agent in range(len(self.agents)):
            if self.rows.lanes[self._agent(agent).lane_key].paused_at is not None:
                self.resume(agent)
        set_back = self.now < self.latest
        for worker in [*self.workers]:
            self._die(worker)
        for worker in [*self.dead] if set_back else []:
            self._bury(worker)
        end = self.now + SOON
        while any(row.is_waiting for row in self.rows.messages.values()):
            assert self.now < end, f"not settled within {SOON}: {[r for r in self.rows.messages.values() if r.is_waiting]} in {self.rows.lanes}"
            self._drain_once(sweeping=set_back)
        self._see_the_end()

    def _drain_once(self, *, sweeping: bool) -> None:
        if sweeping:
            self.sweep()
        runs = self.claim(0, limit=len(self.agents))
        for run in runs:
            self._end(self.workers[0], run, "deliver")
        if not runs:
            self.pass_time(60)

    def _see_the_end(self) -> None:
        for worker in [*self.dead]:
            self._bury(worker)
        while self._takeable():
            assert self.claim(0, limit=len(self.agents)) == []
        laws.all_is_settled(self.rows, self.stories, now=self.now)


def _commit_of(work: Work) -> Commit:
    message = work.message
    asked = Entry(TranscriptEntry.Role.USER, message.content, message_id=message.message_id)
    answered = Entry(TranscriptEntry.Role.ASSISTANT, "ok")
    return Commit(work.turn, work.hold, [asked, answered], [Mark(message.message_id, digest="")])
