"""Whole shifts in this process: real threads, a real database, real time."""

import json
import os
import threading
import time

import pytest
from django.db import connection
from django_q.conf import Conf

from inbox_app import drain, shift, transitions
from inbox_app.models import Attempt, Message
from inbox_app.shift import Crew, run_shift
from sessions_app import actions, lanes
from sessions_app.clock import database_now
from sessions_app.models import Holder, Lane, Turn
from tests.factories import MessageFactory, ProjectFactory, SessionFactory, claimed
from tests.inbox_app import odd_runtimes

pytestmark = pytest.mark.django_db(transaction=True)
_own_nursery = []


@pytest.fixture(scope="module", autouse=True)
def effects_file(tmp_path_factory):
    yield tmp_path_factory.mktemp("shift") / "effects"
    for nursery in _own_nursery:
        nursery.close()


@pytest.fixture(autouse=True)
def surroundings(settings, effects_file, monkeypatch):
    """The runtimes that misbehave, an effects file, and whatever a shift changes for its whole process put back."""
    settings.RUNTIMES = {**settings.RUNTIMES, **odd_runtimes.RUNTIMES}
    settings.SUZENT_ALLOW_CRASH = True
    settings.SUZENT_EFFECTS_FILE = str(effects_file)
    effects_file.write_text("")
    monkeypatch.setattr(Conf, "MAX_RSS", Conf.MAX_RSS)
    monkeypatch.setattr(shift, "_nursery", next(iter(_own_nursery), None))  # it keeps the settings of its birth
    shift._ready_nursery()  # before the test has threads, as in a worker: see there
    odd_runtimes.hung.clear()
    odd_runtimes.said.clear()
    yield
    _own_nursery[:] = [shift._nursery] if shift._nursery else []
    odd_runtimes.hung.set()
    drain._flag[0] = 0
    for thread in threading.enumerate():
        if thread.name.startswith("turn-"):
            thread.join(10)


@pytest.fixture
def effects(effects_file):
    def read():
        return [json.loads(line) for line in effects_file.read_text().splitlines()]

    return read


def target(runtime="scripted", **about):
    return SessionFactory(project=ProjectFactory(runtimes=["echo", "scripted", runtime]), runtime=runtime, **about)


def send(to, content="hello"):
    return MessageFactory(sender=None, sender_label="test", target=to, content=content)


def row(message):
    return Message.objects.get(pk=message.pk)


def outcomes(message):
    return list(Attempt.objects.filter(message=message).order_by("number").values_list("outcome", flat=True))


def replies(session):
    return list(session.entries.filter(role="assistant").order_by("seq").values_list("text", flat=True))


def shifts_until_settled(*messages, within=40):
    give_up_at = time.monotonic() + within
    while Message.objects.unsettled().filter(pk__in=[message.pk for message in messages]).exists():
        assert time.monotonic() < give_up_at
        run_shift()


class Meanwhile:
    """While a shift runs here, do something in another thread once the message's turn has begun."""

    def __init__(self, message, act):
        self._thread = threading.Thread(target=self._run, args=(message, act))
        self.at = 0.0

    def _run(self, message, act):
        held = Lane.objects.filter(key=message.session.lane_key, lease_owner__isnull=False)
        while not (held.exists() and Turn.objects.running().filter(session=message.session_id).exists()):
            time.sleep(0.05)  # a turn whose lane nobody holds is the lost one of a suspect
        time.sleep(0.2)
        self.at = time.monotonic()
        act()
        connection.close()

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *exc_info):
        self._thread.join()


# --- delivery --------------------------------------------------------------------------------------------------


def test_a_message_is_answered_and_the_shift_leaves_nothing_behind():
    message = send(target("echo"))
    run_shift()
    assert replies(message.session) == ["ok: hello"]
    assert (row(message).status, outcomes(message)) == ("delivered", ["delivered"])
    assert not Holder.objects.exists()
    assert not Lane.objects.exclude(lease_owner=None).exists()


def test_a_shift_with_nothing_to_do_leaves_after_a_little_while():
    began = time.monotonic()
    run_shift()
    assert 1.5 < time.monotonic() - began < 15


def test_mail_for_one_target_is_answered_in_order_one_at_a_time(effects):
    """LSE-14, LSE-23."""
    to = target()
    messages = [send(to, f"!sleep 0.01\n{number}") for number in range(20)]
    shifts_until_settled(*messages)
    assert replies(to) == [f"ok: {number}" for number in range(20)]
    spans = sorted((line["started"], line["ended"]) for line in effects())
    assert all(one[1] <= following[0] for one, following in zip(spans, spans[1:], strict=False))


def test_forty_messages_for_twenty_targets_run_side_by_side(effects):
    targets = [target() for _ in range(20)]
    messages = [send(to, f"!sleep 0.5\n{number}") for number in range(2) for to in targets]
    shifts_until_settled(*messages)
    assert all(replies(to) == ["ok: 0", "ok: 1"] for to in targets)
    lines = effects()
    assert len(lines) == 40
    assert max(line["ended"] for line in lines) - min(line["started"] for line in lines) < 10  # one by one: 20 s


def test_a_lane_with_much_mail_goes_to_the_back_after_a_few_messages(settings, effects):
    settings.SUZENT_TURN_CONCURRENCY = 1
    hot, other = target(), target()
    messages = [send(hot) for _ in range(20)]
    late = send(other)
    shifts_until_settled(*messages, late)
    order = [line["message_id"] for line in effects()]
    assert order.index(late.message_id) == shift.MESSAGES_A_HOLD
    assert len(order) == 21


def test_mail_that_comes_while_a_shift_works_is_taken_by_it():
    first = send(target(), "!sleep 0.5")
    to = target()
    with Meanwhile(first, lambda: send(to)):
        run_shift()
    assert replies(to) == ["ok: hello"]


# --- retries ---------------------------------------------------------------------------------------------------


def test_a_failed_try_is_charged_and_tried_again_before_what_follows():
    """LSE-14."""
    to = target()
    messages = [send(to, "!fail 1\none"), send(to, "two")]
    shifts_until_settled(*messages)
    assert replies(to) == ["ok: one", "ok: two"]
    assert (row(messages[0]).attempts, outcomes(messages[0])) == (1, ["retried", "delivered"])


def test_an_unavailable_try_is_not_charged():
    message = send(target(), "!unavailable 1\none")
    shifts_until_settled(message)
    assert (row(message).attempts, row(message).deferrals, outcomes(message)) == (0, 1, ["released", "delivered"])


@pytest.mark.parametrize("runtime", ["SaysParts", "SaysNothing", "SaysText"])
def test_a_runtime_without_a_sound_result_is_charged_and_its_neighbours_are_delivered(runtime, effects):
    bad, good = send(target(runtime)), [send(target(), "!sleep 0.2") for _ in range(3)]
    run_shift()
    assert row(bad).status == "pending"
    assert set(outcomes(bad)) == {"retried"}
    assert [outcomes(message) for message in good] == [["delivered"]] * 3
    assert len(effects()) == 3


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_runtime_that_ends_its_thread_holds_up_nobody():
    bad, good = send(target("Quits")), send(target())
    began = time.monotonic()
    run_shift()
    assert time.monotonic() - began < 30
    assert row(good).status == "delivered"
    [work] = transitions.claim("next", now=database_now(), limit=10)
    assert (work.message.pk, work.alone) == (bad.pk, True)


# --- stop ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("runtime", "content"), [("scripted", "!say half\n!sleep 60\n!say never"), ("StopsAngrily", "x")])
def test_a_stop_ends_the_turn_within_seconds_and_it_is_not_tried_again(runtime, content):
    """STP-01."""
    to = target(runtime)
    message = send(to, content)
    with Meanwhile(message, lambda: actions.stop_session(to, now=database_now())) as stop:
        run_shift()
    assert time.monotonic() - stop.at < 15
    assert (row(message).status, outcomes(message), Turn.objects.get().state) == ("delivered", ["stopped"], "stopped")
    assert "never" not in "".join(replies(to))


def test_mail_behind_a_stopped_turn_runs_next():
    """STP-01."""
    to = target()
    stopped, following = send(to, "!sleep 60"), send(to, "next")
    with Meanwhile(stopped, lambda: actions.stop_session(to, now=database_now())):
        shifts_until_settled(stopped, following)
    assert (outcomes(stopped), outcomes(following)) == (["stopped"], ["delivered"])


def test_archiving_a_session_ends_its_turn_and_fails_its_mail():
    to = target()
    messages = [send(to, "!sleep 60"), send(to)]
    with Meanwhile(messages[0], lambda: actions.archive_session(to, now=database_now())) as archived:
        shifts_until_settled(*messages)
    assert time.monotonic() - archived.at < 20
    assert {row(message).reason for message in messages} == {"target_gone"}
    assert not to.entries.exists()


# --- limits ----------------------------------------------------------------------------------------------------


def test_a_turn_past_its_time_loses_its_lane_and_what_its_zombie_does_counts_for_nothing(settings):
    """LSE-09."""
    settings.SUZENT_TURN_TIMEOUT = 0.5
    other = target("echo")
    to = SessionFactory(project=ProjectFactory(runtimes=["Hanging"]), config={"to": other.pk})
    message = send(to)
    run_shift()
    assert (row(message).status, row(message).attempts, row(message).losses) == ("pending", 1, 1)
    assert "0.5 seconds" in row(message).last_error
    assert Lane.objects.get(pk=to.lane_key).lease_owner is None
    odd_runtimes.hung.set()
    give_up_at = time.monotonic() + 10
    while not odd_runtimes.said and time.monotonic() < give_up_at:
        time.sleep(0.05)
    assert odd_runtimes.said == ["lease_lost"]
    assert not to.entries.exists()
    assert not Message.objects.filter(session=other).exists()


def test_a_drain_lets_turns_end_within_the_grace_period(settings):
    settings.SUZENT_SHUTDOWN_GRACE = 30
    message, waiting = send(target(), "!sleep 1"), None
    to = message.session
    with Meanwhile(message, drain.request_drain):
        waiting = send(to, "behind it")
        run_shift()
    assert outcomes(message) == ["delivered"]
    assert (row(waiting).status, outcomes(waiting)) == ("pending", [])


def test_a_drain_puts_back_uncharged_what_does_not_end_in_time(settings):
    """LSE-08."""
    settings.SUZENT_SHUTDOWN_GRACE = 0.3
    message = send(target(), "!sleep 60")
    with Meanwhile(message, drain.request_drain):
        run_shift()
    assert (row(message).status, row(message).attempts, row(message).losses, outcomes(message)) == ("pending", 0, 0, ["released"])
    assert lanes.any_due(now=database_now())


def test_a_shift_that_begins_while_draining_claims_nothing():
    message = send(target())
    drain.request_drain()
    run_shift()
    assert row(message).status == "pending"


def test_a_turn_longer_than_the_lease_runs_once(settings, effects):
    """LSE-01."""
    settings.SUZENT_LEASE_SECONDS = 2
    message = send(target(), "!sleep 5")
    thief, stolen = threading.Event(), []

    def try_to_steal():
        while not thief.wait(0.3):
            stolen.extend(transitions.claim("thief", now=database_now(), limit=10))

    with Meanwhile(message, try_to_steal):
        run_shift_and(thief.set)
    assert stolen == []
    assert (row(message).attempts, row(message).losses, outcomes(message), len(effects())) == (0, 0, ["delivered"], 1)


def run_shift_and(then):
    try:
        run_shift()
    finally:
        then()


# --- the crew --------------------------------------------------------------------------------------------------


def test_a_shift_sees_its_crew_out_for_a_process_with_threads_must_not_fork():
    crew, go, workers = Crew(), threading.Event(), []
    crew.hand(lambda: workers.append(threading.current_thread()) or go.wait(30))
    threading.Timer(0.2, go.set).start()
    crew.dismiss(patience=30)
    assert [worker.is_alive() for worker in workers] == [False]


def test_a_shift_leaves_a_thread_behind_that_hangs():
    crew, go = Crew(), threading.Event()
    crew.hand(lambda: go.wait(30))
    crew.dismiss(patience=0.1)
    assert not go.is_set()
    go.set()


# --- suspects --------------------------------------------------------------------------------------------------


def suspect(content, runtime="scripted"):
    """Its first try was lost with its worker."""
    message = send(target(runtime), content)
    claimed(message, owner="gone")
    lanes.end_leases("gone", now=database_now())
    return message


def test_a_suspect_runs_in_a_process_of_its_own(effects):
    message, other = suspect("hello"), send(target())
    run_shift()
    assert (outcomes(message), outcomes(other)) == (["lost", "delivered"], ["delivered"])
    pids = {line["message_id"]: line["pid"] for line in effects()}
    assert pids[other.message_id] == os.getpid() != pids[message.message_id]


def test_a_suspect_that_kills_its_process_takes_nobody_along():
    """LSE-07."""
    message, others = suspect("!crash 9"), [send(target(), "!sleep 0.5") for _ in range(3)]
    run_shift()
    assert row(message).losses == len(outcomes(message)) >= 2
    assert (row(message).attempts, set(outcomes(message))) == (0, {"lost"})
    assert [outcomes(other) for other in others] == [["delivered"]] * 3


def test_suspects_that_kill_who_watches_over_them_take_nobody_along_and_end_as_worker_died():
    """LSE-07."""
    killers, other = [suspect("x", runtime=runtime) for runtime in ("KillsItsParent", "KillsItsGroup")], suspect("!sleep 2")
    shifts_until_settled(*killers, other)
    assert [(row(killer).reason, row(killer).losses, row(killer).attempts) for killer in killers] == [("worker_died", 4, 0)] * 2
    assert outcomes(other) == ["lost", "delivered"]


def test_a_suspect_that_kills_the_nursery_of_its_worker_ends_as_worker_died():
    """LSE-07: while nobody else was in there, it is known who it was."""
    message = suspect("x", runtime="KillsItsNursery")
    shifts_until_settled(message)
    assert (row(message).reason, row(message).attempts) == ("worker_died", 0)


def test_a_suspect_can_be_stopped():
    message = suspect("!sleep 60")
    with Meanwhile(message, lambda: actions.stop_session(message.session, now=database_now())):
        run_shift()
    assert outcomes(message) == ["lost", "stopped"]


def test_a_suspect_past_its_time_is_killed(settings):
    settings.SUZENT_TURN_TIMEOUT = 1
    message = suspect("!sleep 60")
    run_shift()
    assert (row(message).status, row(message).losses, outcomes(message)[:2]) == ("pending", 1, ["lost", "retried"])
    assert row(message).attempts == outcomes(message).count("retried")
