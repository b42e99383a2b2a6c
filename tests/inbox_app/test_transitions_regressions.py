"""What the simulation has found: each a fault once, in the fewest steps."""

from datetime import timedelta

import pytest

from inbox_app import transitions
from inbox_app.deliveries import Judged
from inbox_app.judgement import Verdict
from inbox_app.models import Message
from inbox_app.transitions import Acknowledgement, Setback
from sessions_app import actions, lanes
from sessions_app.clock import database_now
from tests.factories import MessageFactory, SessionFactory, claimed, committed, failed

pytestmark = pytest.mark.django_db

day = timedelta(days=1)


def mail_for(target):
    return MessageFactory(sender=None, sender_label="test", target=target)


# --- a clock that ran a day ahead and was set right --------------------------------------------------------------


def redelivered_ahead(target, *, ahead):
    transitions.redeliver(failed(mail_for(target)), who="olga", now=ahead)


def resumed_ahead(target, *, ahead):
    mail_for(target)
    lanes.pause(target.lane_key, now=ahead)
    lanes.resume(target.lane_key, now=ahead)


def resumed_ahead_while_empty(target, *, ahead):
    lanes.pause(target.lane_key, now=ahead)
    lanes.resume(target.lane_key, now=ahead)
    mail_for(target)


def acknowledged_ahead(target, *, ahead):
    work = committed(claimed(mail_for(target)))
    mail_for(target)
    transitions.acknowledge([Acknowledgement(work.hold, work.message)], now=ahead)


def lost_ahead(target, *, ahead):
    work = claimed(mail_for(target))
    lanes.end_leases(work.hold.owner, now=ahead)


def withdrawn_ahead(target, *, ahead):
    first, _ = mail_for(target), mail_for(target)
    transitions.withdraw(first, who="olga", by_sender=False, now=ahead)


@pytest.mark.parametrize(
    "done", [redelivered_ahead, resumed_ahead, resumed_ahead_while_empty, acknowledged_ahead, lost_ahead, withdrawn_ahead]
)
def test_what_was_done_under_a_clock_that_ran_ahead_strands_no_mail(done):
    """Clock steps do not strand due mail: the next sweep sees to it."""
    target = SessionFactory()
    done(target, ahead=database_now() + day)
    assert not lanes.any_due(now=database_now())
    transitions.sweep(now=database_now())
    [work] = transitions.claim("shift", now=database_now(), limit=1)
    assert work.message.session == target


def test_the_sweep_leaves_a_wait_alone_that_no_clock_made_too_long():
    target = SessionFactory()
    work = claimed(mail_for(target))
    mail_for(target)
    now = database_now()
    transitions.release(work, Setback("boom", now + timedelta(minutes=1), charged=True), now=now)
    assert transitions.sweep(now=now).repaired == 0
    assert Message.objects.get(pk=work.message.pk).available_at == now + timedelta(minutes=1)


# --- what changed while a dispatcher had a message in hand -------------------------------------------------------


def setback():
    return Setback("boom", database_now(), charged=True)


def tried(message, *, times):
    """Its next try, begun."""
    for _ in range(times):
        transitions.release(claimed(message), setback(), now=database_now())
    return claimed(message)


def test_a_sender_that_was_archived_during_the_turn_gets_no_notice():
    work = tried(MessageFactory(), times=4)
    actions.archive_session(work.message.sender, now=database_now())
    transitions.release(work, setback(), now=database_now())
    assert Message.objects.get(pk=work.message.pk).status == "failed"
    assert not Message.objects.filter(kind="delivery_failure").exists()


def test_a_judgement_from_before_a_redelivery_fails_nothing():
    """It had expired; before the dispatcher could say so an operator withdrew it and sent it again."""
    message = MessageFactory(valid_for=timedelta(minutes=1))
    now = message.accepted_at + timedelta(minutes=2)
    [judged] = transitions.claim("shift", now=now, limit=1)
    transitions.withdraw(message, who="olga", by_sender=False, now=now)
    transitions.redeliver(message, who="olga", now=now)
    assert transitions.fail(judged, now=now)
    assert Message.objects.get(pk=message.pk).status == "pending"
    assert [notice.message_id for notice in Message.objects.filter(kind="delivery_failure")] == [f"failure-{message.pk}-0"]
    assert {item.message.pk for item in transitions.claim("shift", now=now, limit=2)} >= {message.pk}


# --- who finds a stopped turn, and dies before it has said so ---------------------------------------------------------


def test_what_was_found_stopped_by_somebody_who_died_then_is_not_tried_again():
    work = claimed(MessageFactory())
    actions.stop_session(work.message.session, now=database_now())
    holder = work.hold.owner
    for other in ("first", "second"):
        lanes.end_leases(holder, now=database_now())
        [found] = transitions.claim(other, now=database_now(), limit=10)
        assert isinstance(found, Judged)
        assert found.judgement.verdict == Verdict.STOPPED
        holder = other
