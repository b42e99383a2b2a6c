"""Deliveries under fire, by machine: sends, deaths, zombies, operators and clocks in any order keep every promise.

An example that fails is made as short as possible and printed as a script: paste its steps into
``test_a_printed_script_is_played_again``. ``pytest --hypothesis-profile=nightly tests/simulation`` looks much longer.
"""

import pytest
from django.db import connection
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from inbox_app.transitions import Work
from tests.simulation.world import COSTS, LANE_LIMIT, MAX_HOPS, World

pytestmark = pytest.mark.django_db(transaction=True)

STEPS_IN_CI = 2_000  # at least; max_examples in conftest.py makes them some more

DELIVERIES = ["deliver", "deliver_on", "deliver_and_send", "deliver_paused", "doubt", "refuse"]
few = st.integers(0, 5)
never_or_at = st.just(0) | st.just(0) | st.integers(1, 12)  # the statement before which the process dies
seldom = st.sampled_from([False, False, True])
outcomes = st.sampled_from(sorted(COSTS))

have_mail = precondition(lambda self: self.world.rows.messages)
are_awake = precondition(lambda self: self.world.awake())
run_turns = precondition(lambda self: self.world.runs(Work))


class Simulation(RuleBasedStateMachine):
    """Each rule is one deed of the world. Its arguments are plain numbers, so that the printed steps are the script."""

    examples = steps = deeds = 0  # of the whole run

    def __init__(self):
        super().__init__()
        self.world, self.begun = World(), False
        Simulation.examples += 1

    @invariant()
    def count_steps(self):
        """Asked once when the example begins and after each step."""
        Simulation.steps += self.begun
        self.begun = True

    # --- senders
    @initialize(mail=st.lists(st.tuples(few, few), min_size=1, max_size=8))
    def begin_with(self, mail):
        for sender, to in mail:
            self.world.send(sender, to)

    @rule(
        sender=few, to=few, content=st.integers(0, 1), kind=st.sampled_from([0, 0, 0, 1]),
        valid_for=st.sampled_from([0, 0, 5, 90]), reply_to=few, dies_at=never_or_at,
    )
    def send(self, **about):
        self.world.send(**about)

    @rule(sender=few, to=few)
    def send_plainly(self, **about):
        self.world.send(**about)

    @have_mail
    @rule(message=few, changed=seldom)
    def send_again(self, **about):
        self.world.send_again(**about)

    @run_turns
    @rule(run=few, to=few, content=st.integers(0, 1))
    def send_from_turn(self, **about):
        self.world.send_from_turn(**about)

    # --- dispatchers
    @are_awake
    @rule(worker=few, limit=st.integers(1, 4), dies_at=never_or_at)
    def claim(self, **about):
        self.world.claim(**about)

    @run_turns
    @rule(run=few, together=st.booleans(), dies_at=never_or_at)
    def commit(self, **about):
        self.world.commit(**about)

    @precondition(lambda self: self.world.ready())
    @rule(run=few, go_on=st.booleans(), together=st.booleans(), dies_at=never_or_at, answer_lost=seldom)
    def acknowledge(self, **about):
        self.world.acknowledge(**about)

    @run_turns
    @rule(run=few, how=outcomes, wait=st.integers(0, 3), dies_at=never_or_at)
    def release(self, **about):
        self.world.release(**about)

    @precondition(lambda self: self.world.judged())
    @rule(run=few, dies_at=never_or_at)
    def settle(self, **about):
        self.world.settle(**about)

    @are_awake
    @rule(worker=few, how=st.sampled_from(DELIVERIES), times=st.integers(1, 4), wait=st.integers(0, 2))
    def deliver(self, **about):
        self.world.work(**about)

    @are_awake
    @rule(worker=few, how=outcomes, times=st.integers(1, 6), wait=st.integers(0, 3))
    def struggle(self, **about):
        self.world.work(**about)

    @are_awake
    @rule(worker=few, times=st.integers(1, 5))
    def perish(self, **about):
        self.world.work(how="die", wait=2, **about)

    @precondition(lambda self: self.world.lost())
    @rule(ghost=few, how=st.sampled_from(["commit", "send", "acknowledge", "release"]))
    def haunt(self, **about):
        self.world.haunt(**about)

    # --- what befalls them
    @precondition(lambda self: self.world.runs() and self.world.awake())
    @rule(worker=few, alone=st.booleans())
    def oversleep(self, **about):
        self.world.oversleep(**about)

    @are_awake
    @rule(worker=few, what=st.sampled_from(["die", "stall"]))
    def befall(self, worker, what):
        getattr(self.world, what)(worker)

    @rule(worker=few, what=st.sampled_from(["bury", "come_back"]))
    def mend(self, worker, what):
        getattr(self.world, what)(worker)

    # --- operators
    @have_mail
    @rule(message=few, by_sender=st.booleans(), dies_at=never_or_at)
    def withdraw(self, **about):
        self.world.withdraw(**about)

    @precondition(lambda self: self.world.put_back())
    @rule(message=few)
    def withdraw_one_that_waits(self, **about):
        self.world.withdraw_one_that_waits(**about)

    @precondition(lambda self: any(row.status == "failed" for row in self.world.rows.messages.values()))
    @rule(message=few, dies_at=never_or_at)
    def redeliver(self, **about):
        self.world.redeliver(**about)

    @rule(agent=few, what=st.sampled_from(["pause", "resume", "resume", "stop"]))
    def operate(self, agent, what):
        getattr(self.world, what)(agent)

    @precondition(lambda self: not self.world.rows.archived)  # a world of the archived shows nothing
    @rule(agent=few, dies_at=never_or_at)
    def archive(self, **about):
        self.world.archive(**about)

    @run_turns
    @rule(run=few, dies=st.booleans())
    def stop_in_its_turn(self, **about):
        self.world.stop_in_its_turn(**about)

    @rule()
    def sweep(self):
        self.world.sweep()

    # --- time
    @rule(seconds=st.sampled_from([1, 6, 31, 100, 3_700]))
    def pass_time(self, **about):
        self.world.pass_time(**about)

    @rule(seconds=st.sampled_from([-86_400, -3_600, -20, 20, 3_600, 86_400]))
    def step_clock(self, **about):
        self.world.step_clock(**about)

    @run_turns
    @rule(seconds=st.sampled_from([31, 3_600]), worker=few)
    def set_clock_ahead(self, **about):
        self.world.set_clock_ahead(**about)

    def teardown(self):
        """The end of each example; after a law was broken there is nothing to be drained."""
        if self.world.sound:
            self.world.drain()
        Simulation.deeds += self.world.deeds


@pytest.fixture(autouse=True)
def _a_small_world(settings, transactional_db):
    if connection.vendor == "postgresql":  # processes die here, not the database: no commit need wait for the disk
        with connection.cursor() as cursor:
            cursor.execute("SET synchronous_commit TO off")
    settings.WAKE = "tests.simulation.bell.ring"
    settings.SUZENT_MAX_HOPS, settings.SUZENT_LANE_LIMIT = MAX_HOPS, LANE_LIMIT


def test_every_promise_is_kept_whatever_happens(record_testsuite_property):
    asked, at_least = hypothesis_settings(), STEPS_IN_CI
    if connection.vendor == "postgresql":  # several times as slow, and what differs there are its locks: see tests/concurrency
        asked, at_least = hypothesis_settings(asked, max_examples=asked.max_examples // 4), at_least // 4
    Simulation.examples = Simulation.steps = Simulation.deeds = 0
    run_state_machine_as_test(Simulation, settings=asked)
    for count in ("examples", "steps", "deeds"):
        record_testsuite_property(f"simulation_{count}", getattr(Simulation, count))
    assert Simulation.steps >= at_least


def test_a_printed_script_is_played_again():
    """The place for a script that a failing run has printed; this one is a death between commit and acknowledgement."""
    state = Simulation()
    state.begin_with(mail=[(0, 1)])
    state.claim(dies_at=0, limit=1, worker=0)
    state.commit(dies_at=0, run=0, together=False)
    state.acknowledge(answer_lost=False, dies_at=2, go_on=True, run=0, together=True)
    state.teardown()
