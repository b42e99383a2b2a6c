"""Many messages in one turn, for a session that asks for it: each keeps its own marker, stage and acknowledgement."""

import threading
from datetime import timedelta

import pytest

from inbox_app import dispatcher, transitions
from inbox_app.deliveries import Acknowledgement, Setback
from inbox_app.models import Attempt, Message
from sessions_app import actions, lanes, turns
from sessions_app.clock import database_now
from sessions_app.models import DeliveryMarker, Turn
from suzent_site.errors import Invalid
from tests.factories import MessageFactory, SessionFactory

pytestmark = pytest.mark.django_db


def claim_one(*, now=None):
    (work,) = transitions.claim("shift:test", now=now or database_now(), limit=1)
    return work


def inbox(count, *, batch=True, runtime="echo", contents=None):
    session = SessionFactory(runtime=runtime, config={"batch": batch})
    contents = contents or [f"message {n}" for n in range(count)]
    return session, [MessageFactory(sender=None, sender_label="test", target=session, content=text) for text in contents]


def finish(work):
    (_, ended), = dispatcher.commit([(work, dispatcher.run(work, threading.Event()).commit)])
    return transitions.acknowledge([ended.acknowledgement], now=database_now())


def statuses(messages):
    return [Message.objects.get(pk=message.pk).status for message in messages]


def test_all_that_wait_are_taken_in_one_turn_and_settled_each_for_itself():
    session, messages = inbox(4)
    work = claim_one()
    assert [message.pk for message, _ in work.inputs] == [message.pk for message in messages]
    assert statuses(messages) == ["processing"] * 4
    finish(work)
    assert statuses(messages) == ["delivered"] * 4
    assert Turn.objects.get(session=session).message_ids == [message.message_id for message in messages]
    assert set(DeliveryMarker.objects.values_list("key", flat=True)) == {message.message_id for message in messages}
    assert list(Attempt.objects.values_list("outcome", flat=True)) == ["delivered"] * 4
    said = session.entries.order_by("seq").values_list("role", "message_id", "text")
    assert [line[:2] for line in said] == [("user", message.message_id) for message in messages] + [("assistant", "")]
    assert said[4][2] == "ok: message 0\nok: message 1\nok: message 2\nok: message 3"


def test_a_number_is_the_most_that_one_turn_takes():
    _, messages = inbox(5, batch=2)
    assert len(claim_one().inputs) == 2
    assert statuses(messages) == ["processing", "processing", "pending", "pending", "pending"]


@pytest.mark.parametrize("batch", [False, 0, 1])
def test_without_the_wish_each_message_has_its_own_turn(batch):
    inbox(3, batch=batch) if batch else inbox(3, batch=False)
    assert len(claim_one().inputs) == 1


@pytest.mark.parametrize("batch", [-1, 0, 21, 2.5, "yes", None, [2]])
def test_a_batch_that_is_no_sound_number_is_refused(batch):
    with pytest.raises(Invalid) as refused:
        SessionFactory(config={"batch": batch})
    assert refused.value.extra["field"] == "config.batch"


def test_a_failed_batch_is_charged_to_nobody_and_tried_again_one_message_at_a_time():
    session, messages = inbox(3, runtime="scripted", contents=["one", "!fail 1", "three"])
    work = claim_one()
    setback = dispatcher.run(work, threading.Event()).setback
    assert transitions.release(work, setback, now=database_now())
    assert [Message.objects.get(pk=message.pk).attempts for message in messages] == [0, 0, 0]
    single = claim_one()
    assert [message.pk for message, _ in single.inputs] == [messages[0].pk]
    finish(single)
    assert len(claim_one().inputs) == 1


def test_only_the_message_at_fault_pays_when_the_batch_has_failed():
    _, messages = inbox(2, runtime="scripted", contents=["!fail 9", "fine"])
    work = claim_one()
    transitions.release(work, dispatcher.run(work, threading.Event()).setback, now=database_now())
    for _ in range(5):
        work = claim_one(now=database_now() + timedelta(hours=1))
        assert len(work.inputs) == 1
        transitions.release(work, Setback("boom", database_now(), charged=True), now=database_now())
    finish(claim_one())
    assert statuses(messages) == ["failed", "delivered"]
    assert Message.objects.get(pk=messages[0].pk).attempts == 5


def test_a_batch_stops_before_an_expired_or_tried_message():
    session, _ = inbox(2)
    MessageFactory(sender=None, sender_label="test", target=session, valid_for=timedelta(microseconds=1))
    MessageFactory(sender=None, sender_label="test", target=session)
    assert len(claim_one(now=database_now() + timedelta(seconds=1)).inputs) == 2


def test_a_lost_batch_is_found_and_each_message_runs_by_itself():
    session, messages = inbox(3)
    lost = claim_one()
    lanes.end_leases(lost.hold.owner, now=database_now())
    for message in messages:
        work = claim_one()
        assert [one.pk for one, _ in work.inputs] == [message.pk]
        assert work.alone
        finish(work)
    assert statuses(messages) == ["delivered"] * 3
    assert Turn.objects.filter(session=session, state="committed").count() == 3


def test_a_committed_batch_that_was_not_acknowledged_is_acknowledged_without_a_second_turn():
    session, messages = inbox(3)
    work = claim_one()
    dispatcher.commit([(work, dispatcher.run(work, threading.Event()).commit)])
    lanes.end_leases(work.hold.owner, now=database_now())
    for _ in messages:
        (judged,) = transitions.claim("shift:next", now=database_now(), limit=1)
        transitions.acknowledge([Acknowledgement(judged.hold, judged.message)], now=database_now())
    assert statuses(messages) == ["delivered"] * 3
    assert Turn.objects.filter(session=session).count() == 1


def test_a_stopped_batch_that_was_lost_is_settled_as_stopped_for_all():
    session, messages = inbox(2)
    work = claim_one()
    actions.stop_session(session, now=database_now())
    lanes.end_leases(work.hold.owner, now=database_now())
    for _ in messages:
        (judged,) = transitions.claim("shift:next", now=database_now(), limit=1)
        assert judged.judgement.verdict == "stopped"
        done = Acknowledgement(judged.hold, judged.message, Attempt.Outcome.STOPPED)
        transitions.acknowledge([done], now=database_now())
    assert statuses(messages) == ["delivered"] * 2
    assert not turns.marked({(session.pk, message.message_id) for message in messages})
