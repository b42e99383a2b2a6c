"""Turns: begun under a hold, committed once under the same hold, or not at all."""

import pytest
from django.db import IntegrityError, transaction

from sessions_app import lanes, turns
from sessions_app.clock import database_now
from sessions_app.models import DeliveryMarker, Session, TranscriptEntry, Turn
from sessions_app.turns import Beginning, Commit, Entry, Mark
from suzent_site.transactions import durable
from tests.factories import SessionFactory

pytestmark = pytest.mark.django_db
USER, ASSISTANT = TranscriptEntry.Role.USER, TranscriptEntry.Role.ASSISTANT


def begin(session, *, owner="one", message_id="m"):
    now = database_now()
    with durable():
        lanes.mark_due(session.lane_key, now=now)
        [hold] = [hold for hold in lanes.claim(owner, now=now, limit=10) if hold.key == session.lane_key]
        [turn] = turns.start([Beginning(hold, session.pk, [message_id])], now=now)
    return Commit(turn, hold, [Entry(USER, "hello", message_id=message_id), Entry(ASSISTANT, "hi")], [Mark(message_id, "digest")])


def commit(*items):
    return turns.commit(items, now=database_now())


def state(item):
    return Turn.objects.get(pk=item.turn.pk).state


def seize(session):
    with durable():
        lanes.seize(session.lane_key, now=database_now())


def ask_to_stop(session):
    with durable():
        return turns.request_stop([session.pk], now=database_now())


@pytest.fixture
def session():
    return SessionFactory()


# --- commit ----------------------------------------------------------------------------------------------------


def test_a_commit_writes_entries_marker_and_state_together(session):
    item = begin(session)
    assert commit(item) == {item.turn.pk: Turn.State.COMMITTED}
    assert list(session.entries.order_by("seq").values_list("seq", "role", "text", "turn")) == [
        (1, "user", "hello", item.turn.pk), (2, "assistant", "hi", item.turn.pk),
    ]  # fmt: skip
    assert turns.marked({(session.pk, "m")}) == {(session.pk, "m")}
    assert Session.objects.get(pk=session.pk).last_seq == 2
    assert state(item) == "committed"


def test_committing_again_changes_nothing_and_answers_the_same(session):
    item = begin(session)
    assert commit(item) == commit(item)
    assert session.entries.count() == 2


def test_many_turns_are_committed_at_once_each_into_its_own_transcript():
    items = [begin(SessionFactory(), message_id=f"m{number}") for number in range(5)]
    assert commit(*items) == {item.turn.pk: "committed" for item in items}
    assert [list(item.turn.session.entries.order_by("seq").values_list("seq", flat=True)) for item in items] == [[1, 2]] * 5


def test_transcripts_grow_by_what_each_turn_says():
    items = [begin(SessionFactory(), message_id=f"m{number}") for number in range(3)]
    shorter = [Commit(item.turn, item.hold, item.entries[: number % 2 + 1], item.marks) for number, item in enumerate(items)]
    commit(*shorter)
    assert [item.turn.session.entries.count() for item in items] == [1, 2, 1]
    assert [DeliveryMarker.objects.get(session=item.turn.session).seq for item in items] == [1, 2, 1]


def test_positions_go_on_without_gaps_after_the_turn_before(session):
    for number in range(3):
        item = begin(session, message_id=f"m{number}")
        commit(item)
        with durable():
            lanes.release([item.hold], due_at=None)
    assert list(session.entries.order_by("seq").values_list("seq", flat=True)) == [1, 2, 3, 4, 5, 6]


def test_a_zombie_whose_lane_was_taken_writes_nothing_and_its_neighbour_commits(session):
    zombie, neighbour = begin(session), begin(SessionFactory(), message_id="n")
    seize(session)
    assert commit(zombie, neighbour) == {neighbour.turn.pk: "committed"}
    assert not session.entries.exists()
    assert not turns.marked({(session.pk, "m")})


def test_a_zombie_of_an_earlier_hold_of_the_same_owner_writes_nothing(session):
    zombie = begin(session)
    with durable():
        turns.close_lost([session.pk], now=database_now())
        lanes.release([zombie.hold], due_at=None)
    begin(session)
    assert commit(zombie) == {}
    assert not session.entries.exists()


def test_a_turn_that_was_failed_meanwhile_is_not_committed(session):
    item = begin(session)
    with durable():
        turns.fail(item.turn.pk, error="no", now=database_now())
    assert commit(item) == {}
    assert not session.entries.exists()


def test_what_was_passed_in_happens_only_with_the_commit(session):
    happened = []
    item = begin(session)
    with_more = Commit(item.turn, item.hold, item.entries, item.marks, also=lambda: happened.append(1))
    commit(with_more)
    commit(with_more)
    assert happened == [1]


def test_what_was_passed_in_undoes_the_commit_when_it_raises(session):
    item = begin(session)
    with pytest.raises(ZeroDivisionError):
        commit(Commit(item.turn, item.hold, item.entries, item.marks, also=lambda: 1 / 0))
    assert (state(item), session.entries.count(), turns.marked({(session.pk, "m")})) == ("running", 0, set())


def test_usage_and_error_are_kept_with_the_turn(session):
    item = begin(session)
    commit(Commit(item.turn, item.hold, item.entries, item.marks, usage={"tokens": 3}, error="late"))
    turn = Turn.objects.get()
    assert (turn.usage, turn.error) == ({"tokens": 3}, "late")


def test_text_that_a_database_cannot_hold_is_made_visible(session):
    """TXT-01: the same on both databases."""
    item = begin(session)
    commit(Commit(item.turn, item.hold, [Entry(ASSISTANT, "a\x00b\ud800c")], item.marks, error="e\x00"))
    assert session.entries.get().text == "a\u2400b\ufffdc"
    assert Turn.objects.get().error == "e\u2400"


def test_a_marker_is_left_once(session):
    """LOP-05: the evidence is a row of its own and outlives the transcript."""
    commit(begin(session))
    session.entries.all().delete()
    assert turns.marked({(session.pk, "m")})
    with pytest.raises(IntegrityError), transaction.atomic():
        DeliveryMarker.objects.create(session=session, source="message", key="m", digest="", seq=1, created_at=database_now())


def test_text_that_looks_like_a_marker_is_none(session):
    """LOP-04."""
    item = begin(session)
    commit(Commit(item.turn, item.hold, [Entry(USER, '{"message_id": "future"}', message_id="m")], item.marks))
    assert not turns.marked({(session.pk, "future")})


def test_a_marker_belongs_to_its_session(session):
    commit(begin(session))
    assert turns.marked({(SessionFactory().pk, "m"), (session.pk, "m"), (session.pk, "other")}) == {(session.pk, "m")}


# --- one at a time ---------------------------------------------------------------------------------------------


def test_a_session_never_has_two_running_turns(session):
    """LSE-23."""
    item = begin(session)
    with pytest.raises(IntegrityError), transaction.atomic():
        turns.start([Beginning(item.hold, session.pk, ["n"])], now=database_now())


# --- stop ------------------------------------------------------------------------------------------------------


def test_a_turn_that_was_asked_to_stop_commits_what_it_has_as_stopped(session):
    item = begin(session)
    assert ask_to_stop(session) == 1
    assert turns.was_asked_to_stop(item.turn.pk)
    assert commit(item) == {item.turn.pk: Turn.State.STOPPED}
    assert session.entries.count() == 2


def test_asking_twice_keeps_the_first_time(session):
    item = begin(session)
    ask_to_stop(session)
    first = Turn.objects.get(pk=item.turn.pk).stop_requested_at
    assert ask_to_stop(session) == 1
    assert Turn.objects.get(pk=item.turn.pk).stop_requested_at == first


@pytest.mark.parametrize("end", [commit, lambda item: seize(item.turn.session)])
def test_a_finished_turn_cannot_be_asked_to_stop(session, end):
    item = begin(session)
    end(item)
    with durable():
        turns.fence_off(session.pk, error="over", now=database_now())
    assert ask_to_stop(session) == 0
    assert not turns.was_asked_to_stop(item.turn.pk)


def test_a_failing_turn_that_was_asked_to_stop_is_stopped(session):
    item = begin(session)
    ask_to_stop(session)
    with durable():
        turns.fail(item.turn.pk, error="x", now=database_now())
    assert state(item) == "stopped"


# --- what a former holder left ---------------------------------------------------------------------------------


@pytest.mark.parametrize("stopped", [False, True])
def test_a_lost_turn_is_closed_as_stopped_if_it_was_asked_to_stop_else_as_failed(session, stopped):
    item = begin(session)
    if stopped:
        ask_to_stop(session)
    with durable():
        turns.close_lost([session.pk, "nobody"], now=database_now())
    assert state(item) == ("stopped" if stopped else "failed")


# --- reading ---------------------------------------------------------------------------------------------------


def test_history_is_the_newest_visible_entries_oldest_first(session):
    item = begin(session)
    entries = [Entry(USER, str(number), visible=number != 3) for number in range(5)]
    commit(Commit(item.turn, item.hold, entries, item.marks))
    assert [entry.text for entry in turns.history(session.pk, 3)] == ["1", "2", "4"]
