"""Mail that is accepted while somebody works on its target: it is delivered, or its sender hears that it is not."""

import threading
from datetime import timedelta
from random import Random

import pytest

from inbox_app import dispatcher, retention, transitions
from inbox_app.deliveries import Work
from inbox_app.models import Message
from sessions_app import actions, lanes
from sessions_app.clock import database_now
from tests.rest import claimed

pytestmark = pytest.mark.django_db
MAIL = [f"m-{number}" for number in range(20)]


def finish(work):
    """The turn of a message, through to its acknowledgement."""
    ended = dispatcher.run_and_commit(work, threading.Event())
    transitions.acknowledge([ended.acknowledgement], now=database_now())


def settle(agent):
    """Until nothing of its mail waits any more."""
    while Message.objects.unsettled().filter(session=agent.id).exists():
        for item in transitions.claim("tests", now=database_now(), limit=10):
            if isinstance(item, Work):
                finish(item)
            else:
                transitions.fail(item, now=database_now())


def statuses(town):
    return {name: town.planner.api.get(f"/api/messages/{name}").json() for name in MAIL}


def pause_and_resume(town, agent):
    lanes.pause(agent.session.lane_key, now=database_now())
    lanes.resume(agent.session.lane_key, now=database_now())


def rename_it(town, agent):
    assert town.owner.patch(f"/api/sessions/{agent.id}", {"title": "New", "config": {"batch": 1}}).status_code == 200


def clear_its_transcript(town, agent):
    agent.session.entries.all().delete()


def purge(town, agent):
    retention.purge(now=database_now() + timedelta(days=31), rest=lambda _seconds: False)


def archive_another(town, agent):
    other = town.owner.post("/api/sessions").json()["agent_id"]
    assert town.owner.delete(f"/api/sessions/{other}").status_code == 204


MAINTENANCE = [pause_and_resume, rename_it, clear_its_transcript, purge, archive_another]


@pytest.mark.parametrize("seed", range(3))
def test_lop_06_whatever_is_done_to_a_busy_session_all_its_mail_is_delivered_once_and_in_order(town, seed):
    dice, order = Random(seed), []
    for number, name in enumerate(MAIL):
        town.planner.api.send("writer", f"number {number}", message_id=name)
        if number % 2:  # the mailbox fills while it works
            work = claimed(town.writer)
            order.append(work.message.message_id)
            dice.choice(MAINTENANCE)(town, town.writer)
            finish(work)
            dice.choice(MAINTENANCE)(town, town.writer)
    while Message.objects.unsettled().exists():
        order.append((work := claimed(town.writer)).message.message_id)
        finish(work)
    assert order == MAIL
    assert not Message.objects.exclude(status="delivered").exists()


@pytest.mark.parametrize("archived_after", [0, 1, 7, 19])
def test_lop_06_mail_for_a_session_that_is_archived_on_the_way_is_delivered_or_told_to_its_sender(town, archived_after):
    for number, name in enumerate(MAIL):
        town.planner.api.send("writer", f"number {number}", message_id=name)
    for _ in range(archived_after):
        finish(claimed(town.writer))
    running = claimed(town.writer)
    actions.archive_session(town.writer.session, now=database_now())
    finish_too_late(running)
    settle(town.writer)
    found = statuses(town)
    assert [found[name]["status"] for name in MAIL] == ["delivered"] * archived_after + ["failed"] * (20 - archived_after)
    assert {one["reason"] for one in found.values()} <= {None, "target_gone"}
    told = Message.objects.filter(kind=Message.Kind.DELIVERY_FAILURE, session="planner")
    assert sorted(told.values_list("in_reply_to", flat=True)) == sorted(MAIL[archived_after:])


def finish_too_late(work):
    """What a turn says that lost its lane meanwhile counts for nothing."""
    ended = dispatcher.run_and_commit(work, threading.Event())
    assert ended.acknowledgement is None
