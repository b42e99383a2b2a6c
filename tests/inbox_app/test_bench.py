"""The rows that bench makes in bulk, past the engine: they must stay rows that the engine knows."""

import pytest

from inbox_app import transitions
from inbox_app.bench import rows
from inbox_app.models import Attempt, Message
from sessions_app.clock import database_now
from sessions_app.models import DeliveryMarker
from tests.factories import ProjectFactory

pytestmark = pytest.mark.django_db


@pytest.fixture
def targets():
    project = ProjectFactory()
    return project, rows.open_targets(project, "t", 2, now=database_now())


def test_waiting_rows_are_claimed_like_mail_that_was_accepted(targets):
    project, sessions = targets
    rows.waiting(project, "t", 2, 4, now=database_now(), name="run", content="hello")
    found = transitions.claim("tests", now=database_now(), limit=10)
    assert {(work.message.target, work.message.content, work.attempt.number) for work in found} == {("t0", "hello", 1), ("t1", "hello", 1)}
    assert {work.session for work in found} == set(sessions)


def test_delivered_rows_have_their_attempts(targets):
    project, _ = targets
    rows.delivered(project, "t", 2, 3, now=database_now())
    rows.attempts()
    assert (Message.objects.delivered().count(), Attempt.objects.filter(outcome="delivered").count()) == (3, 3)


def test_markers_are_those_of_messages(targets):
    _, sessions = targets
    rows.markers(sessions[0], 3, now=database_now())
    assert DeliveryMarker.objects.filter(session=sessions[0], source="message").count() == 3
