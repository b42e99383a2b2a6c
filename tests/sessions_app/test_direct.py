"""Direct turns: run by whoever was asked, under the session's lane, and told how they ended."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from django.db import connection

from inbox_app import transitions
from inbox_app.deliveries import Acknowledgement
from inbox_app.models import Message
from sessions_app import lanes, turns
from sessions_app.actions import SessionGone, archive_session, stop_session
from sessions_app.clock import database_now
from sessions_app.direct import AlreadyDone, DirectTurns, LaneBusy, Order
from sessions_app.models import DeliveryMarker, Holder, Lane, Turn
from sessions_app.runtimes.base import TurnInput
from sessions_app.transcripts import PROVENANCE
from tests.factories import MessageFactory, ProjectFactory, SessionFactory, claimed, committed
from tests.inbox_app import odd_runtimes

pytestmark = pytest.mark.django_db(transaction=True)
HEADER = {"type": PROVENANCE, "kind": "user_message", "sender": "42"}
WAIT = 20  # seconds after which a test that hangs fails instead


@pytest.fixture(autouse=True)
def with_odd_runtimes(settings):
    settings.RUNTIMES = {**settings.RUNTIMES, **odd_runtimes.RUNTIMES}
    odd_runtimes.hung.clear()
    odd_runtimes.said.clear()
    yield
    odd_runtimes.hung.set()
    for left in [thread for thread in threading.enumerate() if thread.name.startswith("direct-")]:
        left.join(WAIT)  # a zombie with a connection must not outlive its test


@pytest.fixture
def direct():
    with DirectTurns(Holder.Kind.SOCIAL) as direct:
        yield direct


def a_session(runtime="scripted", **about):
    return SessionFactory(project=ProjectFactory(runtimes=["echo", "scripted", *odd_runtimes.RUNTIMES]), runtime=runtime, **about)


def order(session, text="hello", *, event="telegram:1", **more):
    given = TurnInput(event, "user_message", text, header=HEADER)
    mark = turns.Mark(event, digest="d", source=DeliveryMarker.Source.EVENT)
    return Order(session, Turn.Origin.SOCIAL, (given,), handled=event, marks=[mark], **more)


def lane(session):
    return Lane.objects.get(pk=session.lane_key)


def lines(session):
    return list(session.entries.order_by("seq").values_list("role", "text"))


@contextmanager
def in_a_thread(act):
    """``act`` at work beside the test; its result, or its error, from the future."""

    def run():
        try:
            return act()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(run)


def until(condition, *, within=WAIT):
    pause = threading.Event()
    for _ in range(within * 50):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("it did not come to that")


def runs(session):
    return lambda: Turn.objects.running().filter(session=session).exists()


# --- a turn ----------------------------------------------------------------------------------------------------


def test_a_free_lane_is_taken_at_once_and_left_due(direct):
    session = a_session("echo")
    ended = direct.run(order(session))
    assert (ended.state, ended.text) == ("committed", "ok: hello")
    assert lines(session) == [("user", "hello"), ("assistant", "ok: hello")]
    assert session.entries.get(seq=1).parts == [HEADER]
    assert turns.marked({(session.pk, "telegram:1")}, source=DeliveryMarker.Source.EVENT)
    turn = Turn.objects.get()
    assert (turn.origin, turn.message_ids) == ("social", [])
    left = lane(session)
    assert (left.lease_owner, left.wanted_until) == (None, None)
    assert left.due_at <= database_now()


def test_an_event_has_one_turn(direct):
    session = a_session("echo")
    direct.run(order(session))
    with pytest.raises(AlreadyDone):
        direct.run(order(session))
    assert (Turn.objects.count(), lane(session).lease_owner) == (1, None)


def test_a_message_does_not_count_as_an_event_of_the_same_id(direct):
    message = MessageFactory(target=a_session("echo"), message_id="telegram:1", sender=None, sender_label="tests")
    work = committed(claimed(message))
    transitions.acknowledge([Acknowledgement(work.hold, work.message)], now=database_now())
    assert direct.run(order(message.session)).state == "committed"


def test_what_goes_with_it_is_written_in_its_commit_or_not_at_all(direct):
    session, other = a_session("echo"), a_session("echo")
    said = []

    def also(turn, thought):
        said.append((turn.pk, thought.reply.text, connection.in_atomic_block))

    ended = direct.run(order(session, also=also, also_lanes=[other.lane_key]))
    assert said == [(ended.turn.pk, "ok: hello", True)]


def test_an_archived_session_runs_nothing(direct):
    session = a_session()
    archive_session(session, now=database_now())
    with pytest.raises(SessionGone):
        direct.run(order(session))


def test_its_tools_send_once_however_often_the_event_is_tried(direct):
    session = a_session()
    writer = SessionFactory(project=session.project)
    for _ in range(2):
        ended = direct.run(order(session, f"!send {writer.pk} look\n!fail 1", keep_failure=False))
        assert ended.state == "failed"
    assert Message.objects.get().content == "look"
    assert lines(session) == []


# --- somebody else has the lane -------------------------------------------------------------------------------


def test_a_held_lane_is_busy_for_who_does_not_wait(direct):
    message = MessageFactory()
    claimed(message)
    with pytest.raises(LaneBusy) as busy:
        direct.run(order(message.session))
    assert (busy.value.status, busy.value.code, busy.value.extra) == (409, "busy", {"retry_after": 2})
    assert lane(message.session).wanted_until is None


def test_a_paused_lane_is_busy(direct):
    session = a_session()
    lanes.pause(session.lane_key, now=database_now())
    with pytest.raises(LaneBusy):
        direct.run(order(session))


def test_who_waited_in_vain_leaves_the_lane_to_others(direct):
    message = MessageFactory()
    claimed(message)
    with pytest.raises(LaneBusy):
        direct.run(order(message.session), wait=0.1)
    assert lane(message.session).wanted_until is None


def test_who_waits_is_next_and_the_mail_behind_goes_on(direct):
    first = MessageFactory(target=a_session("echo"), sender=None, sender_label="tests")
    second = MessageFactory(target=first.session, sender=None, sender_label="tests")
    work = committed(claimed(first))
    with in_a_thread(lambda: direct.run(order(first.session), wait=WAIT)) as future:
        until(lambda: lane(first.session).wanted_until is not None)
        assert transitions.acknowledge([Acknowledgement(work.hold, first, go_on=True)], now=database_now()) == []
        assert future.result(WAIT).state == "committed"
    [next_one] = transitions.claim("shift", now=database_now(), limit=10)
    assert next_one.message.pk == second.pk


def test_a_shift_takes_no_lane_that_somebody_wants():
    message = MessageFactory()
    lanes.want(message.session.lane_key, now=database_now())
    assert transitions.claim("shift", now=database_now(), limit=10) == []


def test_a_wish_ends_by_itself_if_who_had_it_dies():
    message = MessageFactory()
    lanes.want(message.session.lane_key, now=database_now())
    later = database_now() + lanes.WANTED_FOR * 1.1
    assert len(transitions.claim("shift", now=later, limit=10)) == 1


def test_what_a_dead_holder_left_is_closed(direct):
    long_ago = database_now() - lanes.lease() * 2
    message = MessageFactory(target=a_session("echo"), sender=None, sender_label="tests", now=long_ago)
    work = claimed(message, now=long_ago)
    assert direct.run(order(message.session)).state == "committed"
    assert Turn.objects.get(pk=work.turn.pk).state == "failed"
    assert claimed(message).message.losses == 1


# --- how it may end otherwise ---------------------------------------------------------------------------------


def test_a_runtime_that_raises_ends_the_turn_as_failed_and_says_so(direct):
    session = a_session("Raises")
    ended = direct.run(order(session, "no \x00 disk"))
    assert (ended.state, ended.thought.error) == ("failed", "RuntimeError: no \x00 disk")
    assert lines(session) == [("user", "no ␀ disk"), ("system", "The turn failed: RuntimeError: no ␀ disk")]
    assert Turn.objects.get().error == "RuntimeError: no ␀ disk"
    assert lane(session).lease_owner is None
    with pytest.raises(AlreadyDone):
        direct.run(order(session))


def test_a_try_that_is_not_to_be_kept_leaves_nothing_and_can_be_made_again(direct):
    session = a_session("Raises")
    assert direct.run(order(session, keep_failure=False)).state == "failed"
    assert lines(session) == []
    assert direct.run(order(session, keep_failure=False)).state == "failed"


def test_an_unavailable_runtime_says_for_how_long(direct):
    ended = direct.run(order(a_session("Away"), "7", keep_failure=False))
    assert (ended.state, ended.thought.unavailable, ended.thought.retry_after) == ("failed", True, 7.0)


@pytest.mark.parametrize("runtime", ["SaysParts", "SaysNothing", "AnswersNone", "SaysText", "Quits"])
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_runtime_without_a_sound_result_fails_its_turn_and_frees_the_lane(direct, runtime):
    session = a_session(runtime)
    ended = direct.run(order(session))
    assert (ended.state, bool(ended.thought.error), lane(session).lease_owner) == ("failed", True, None)


@pytest.mark.parametrize(
    ("runtime", "kept"), [("scripted", [("user", "!say half\n!sleep 60"), ("assistant", "half")]), ("StopsAngrily", None)]
)
def test_a_stop_ends_it_and_keeps_what_it_has(direct, runtime, kept):
    session = a_session(runtime)
    with in_a_thread(lambda: direct.run(order(session, "!say half\n!sleep 60", keep_failure=False))) as future:
        until(runs(session))
        assert stop_session(session, now=database_now())
        assert future.result(WAIT).state == "stopped"
    assert kept is None or lines(session) == kept
    assert turns.marked({(session.pk, "telegram:1")}, source=DeliveryMarker.Source.EVENT)


def test_a_turn_past_its_time_fails_and_its_zombie_can_do_nothing(direct, settings):
    settings.SUZENT_TURN_TIMEOUT = 0.3
    writer = SessionFactory()
    session = a_session("Hanging", config={"to": writer.pk})
    ended = direct.run(order(session))
    assert (ended.state, ended.thought.error) == ("failed", "the turn did not end within 0.3 seconds")
    assert lane(session).lease_owner is None
    odd_runtimes.hung.set()
    until(lambda: odd_runtimes.said == ["lease_lost"])
    assert [role for role, _ in lines(session)] == ["user", "system"]


def test_a_lost_lane_writes_nothing(direct):
    session = a_session()
    with in_a_thread(lambda: direct.run(order(session, "!sleep 60"))) as future:
        until(runs(session))
        archive_session(session, now=database_now())
        ended = future.result(WAIT)
    assert ended.state is None
    assert lines(session) == []
    assert not turns.marked({(session.pk, "telegram:1")}, source=DeliveryMarker.Source.EVENT)


def test_the_lease_is_renewed_while_it_runs(settings):
    settings.SUZENT_LEASE_SECONDS = 1
    session = a_session()
    with DirectTurns(Holder.Kind.WEB) as direct, in_a_thread(lambda: direct.run(order(session, "!sleep 2.5"))) as future:
        until(runs(session))
        first = lane(session).lease_until
        until(lambda: future.done() or lane(session).lease_until > first)
        assert future.result(WAIT).state == "committed"
        assert transitions.claim("thief", now=database_now(), limit=1) == []


# --- the end of the process -----------------------------------------------------------------------------------


def test_at_the_end_running_turns_may_finish_and_none_begins():
    session, late = a_session(), a_session()
    direct = DirectTurns(Holder.Kind.WEB)
    with direct, in_a_thread(lambda: direct.run(order(session, "!sleep 0.5"))) as future:
        until(runs(session))
        direct.__exit__(None, None, None)
        assert future.result(WAIT).state == "committed"
        with pytest.raises(LaneBusy):
            direct.run(order(late), wait=5)
    assert not Holder.objects.exists()


def test_past_the_grace_period_a_turn_is_given_up_and_its_event_can_come_again(settings, direct):
    settings.SUZENT_SHUTDOWN_GRACE = 0
    session = a_session("Hanging")
    first = DirectTurns(Holder.Kind.WEB)
    with first, in_a_thread(lambda: first.run(order(session))) as future:
        until(runs(session))
        first.__exit__(None, None, None)
        assert (future.result(WAIT).state, future.result().thought.error) == ("failed", "the process that ran it was asked to stop")
    assert lines(session) == []
    odd_runtimes.hung.set()
    assert direct.run(order(session)).state == "failed"  # by its own error now, and not AlreadyDone
