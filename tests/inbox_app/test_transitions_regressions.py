"""What the simulation has found: each a fault once, in the fewest steps."""

from datetime import timedelta

import pytest

from inbox_app import transitions
from inbox_app.models import Message
from inbox_app.transitions import Acknowledgement
from sessions_app import lanes
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
    transitions.release(work, transitions.Setback("boom", now + timedelta(minutes=1), charged=True), now=now)
    assert transitions.sweep(now=now).repaired == 0
    assert Message.objects.get(pk=work.message.pk).available_at == now + timedelta(minutes=1)
