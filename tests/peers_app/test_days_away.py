"""PER-12: a peer that is away for days. The backoff, cap and horizon are those that are shipped; only the clock is moved.

It is moved by dating back every moment that is stored, since the database's own clock (PostgreSQL) cannot be moved: what
was written an hour ago and is dated back by three days lies as far behind as if the clock had gone on by three days.
"""

import time
from dataclasses import dataclass
from datetime import timedelta

import pytest
from django.apps import apps
from django.db.models import DateTimeField, F

from inbox_app import transitions
from inbox_app.models import Message
from inbox_app.shift import Shift
from peers_app import probe
from peers_app.models import Peer
from sessions_app.clock import database_now
from sessions_app.holder import LaneHolder
from sessions_app.models import Holder
from tests.peers_app.pairing import paired
from tests.peers_app.peer_091 import peer_091
from tests.peers_app.test_delivery import back_at, lane_of, pair, send, try_once

pytestmark = pytest.mark.django_db(transaction=True)

MAIL = [str(number) for number in range(20)]
MINUTE = timedelta(minutes=1)
SECONDS, HOUR, DAYS = timedelta(seconds=10), timedelta(hours=1), timedelta(days=3)
SHIPPED_CAP = timedelta(hours=4)
SHIPPED_HORIZON = timedelta(days=8)


@dataclass
class Absence:
    """Of a peer: the dispatcher and what runs minutely do what falls due in it."""

    peer: Peer
    passed: timedelta = timedelta()

    def lasts(self, span):
        """Until the first try after that time: whoever comes back right after it has the longest wait before it."""
        while self.passed < span and lane_of(self.peer).due_at is not None:
            self._until_the_next_try()
            probe.probe()
            transitions.sweep(now=database_now())
            try_once()

    def _until_the_next_try(self):
        wait = max(lane_of(self.peer).due_at - database_now(), timedelta())
        time_passes(wait)
        self.passed += wait


def time_passes(span):
    for model in [model for name in ("sessions_app", "inbox_app", "peers_app") for model in apps.get_app_config(name).get_models()]:
        moments = [field.name for field in model._meta.concrete_fields if isinstance(field, DateTimeField)]
        if moments:
            model.objects.update(**{name: F(name) - span for name in moments})


@pytest.fixture
def away():
    """The address of a device that has just left."""
    with peer_091() as there:
        url = there.url
    return url


def work_off(messages):
    """A shift, as the cluster runs it, until all of them are settled; the seconds that it took."""
    began = time.monotonic()
    with LaneHolder(Holder.Kind.SHIFT) as holder:
        shift = Shift(holder, nursery=None)
        while messages.unsettled().exists() and time.monotonic() - began < 60:
            shift.step()
            shift.rest(0.01)
        shift.leave()
    return time.monotonic() - began


def answers_the_probe(device):
    time_passes(MINUTE)  # the probe has just been made when it comes back: the next is a minute away
    probe.probe()
    return MINUTE


def calls_us(device):
    assert device.get("/channels/suzent/whoami").status_code == 200
    return timedelta()


@pytest.mark.parametrize(("span", "is_heard"), [(SECONDS, calls_us), (HOUR, answers_the_probe), (DAYS, answers_the_probe), (DAYS, calls_us)])
def test_per_12_all_mail_arrives_in_order_within_two_minutes_of_the_return(town, away, span, is_heard):
    device = paired()
    peer = pair(town, away, reverse_grant=device.grant)
    mail = Message.objects.filter(pk__in=[send(town, peer, content).pk for content in MAIL])
    absence = Absence(peer)
    absence.lasts(span)
    tries = lane_of(peer).failures
    assert (mail.pending().count(), Peer.objects.get().state, absence.passed >= span) == (20, "offline", True)
    assert [message.attempts for message in mail.order_by("pk")] == [tries] + 19 * [0]
    assert lane_of(peer).due_at - database_now() > 0.5 * min(timedelta(seconds=2**tries), SHIPPED_CAP)  # after days: hours
    with back_at(away) as there:
        waited = is_heard(device) + timedelta(seconds=work_off(mail))
    assert waited < 2 * MINUTE
    assert (mail.delivered().count(), list(there.stored.values())) == (20, MAIL)
    assert (len(there.posts), there.most_at_once) == (20, 1)  # no burst: one after the other, each once
    assert (Peer.objects.get().state, lane_of(peer).failures) == ("ready", 0)
    assert not Message.objects.filter(kind="delivery_failure").exists()


def test_per_12_after_ten_days_the_sender_has_been_told_of_each_message_and_new_mail_goes(town, away):
    peer = pair(town, away)
    mail = [send(town, peer, content) for content in MAIL]
    Absence(peer).lasts(timedelta(days=10))
    head, *others = Message.objects.filter(pk__in=[message.pk for message in mail]).order_by("pk")
    assert {(message.status, message.reason) for message in (head, *others)} == {("failed", "exhausted")}
    assert head.attempts == 48  # which are over before the horizon is; those behind it have its whole length
    for message in others:
        assert SHIPPED_HORIZON <= message.settled_at - message.accepted_at < SHIPPED_HORIZON + 1.2 * SHIPPED_CAP
    notices = Message.objects.filter(kind="delivery_failure", session="planner")
    assert sorted(notices.values_list("in_reply_to", flat=True)) == sorted(message.message_id for message in mail)
    send(town, peer, "from now on")
    with back_at(away) as there:
        try_once()
    assert list(there.stored.values()) == ["from now on"]
