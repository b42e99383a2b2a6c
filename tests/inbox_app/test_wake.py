"""The queued task is a hint that follows the commit: no commit, no task."""

from contextlib import contextmanager

import pytest
from django.db import OperationalError, connection

from inbox_app import wake
from inbox_app.models import Message
from suzent_site.broker import quick_broker

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def queue(monkeypatch):
    """How many tasks are queued, as long as no shift is known to be at work."""
    monkeypatch.setattr(wake._Staffed, "until", 0.0)
    broker = quick_broker()
    broker.purge_queue()
    yield broker.queue_size
    broker.purge_queue()


@contextmanager
def refused_commits():
    """The database refuses every commit of this thread: Django's own hook, on this one object."""
    commit = connection._commit

    def refuse():
        raise OperationalError("no space left on the device")

    connection._commit = refuse
    try:
        yield
    finally:
        connection._commit = commit


def test_lse_19_a_send_that_is_rolled_back_leaves_no_message_and_no_task_behind(town, queue):
    with refused_commits():
        answer = town.planner.api.send("writer", "hello", message_id="m")
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert (Message.objects.count(), queue()) == (0, 0)


def test_lse_19_a_send_that_is_committed_leaves_both(town, queue):
    assert town.planner.api.send("writer", "hello", message_id="m").status_code == 202
    assert (Message.objects.count(), queue()) == (1, 1)
