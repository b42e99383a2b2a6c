"""Whether ``/readyz`` believes that somebody works."""

from datetime import timedelta

import pytest
import time_machine
from django.test import Client

from inbox_app.models import Wake
from inbox_app.readiness import ANSWERED_WITHIN, TO_BE_HEARD, a_cluster_has_ended
from sessions_app.clock import database_now

pytestmark = pytest.mark.django_db
SECOND = timedelta(seconds=1)


def answered(ago):
    Wake.objects.update_or_create(name="answer", defaults={"answered_at": database_now() - ago})


def is_ready():
    return Client().get("/readyz").json()["status"] == "ready"


@pytest.mark.parametrize(("ago", "ready"), [(timedelta(0), True), (ANSWERED_WITHIN - 9 * SECOND, True), (ANSWERED_WITHIN + SECOND, False)])
def test_it_is_ready_while_a_worker_has_answered_lately(ago, ready):
    answered(ago)
    assert is_ready() == ready


def test_nobody_ever_answered():
    assert not is_ready()


def test_the_clock_that_counts_is_the_one_that_wrote_the_answer():
    """On PostgreSQL that is the database's own; a server whose clock is wrong is ready all the same."""
    with time_machine.travel(database_now() + timedelta(hours=3)):
        answered(timedelta(0))
        assert is_ready()


def test_after_the_end_of_a_cluster_its_last_answer_counts_for_seconds_only():
    answered(timedelta(0))
    a_cluster_has_ended(now=database_now())
    assert is_ready(), "another cluster has had no time yet to answer"
    a_cluster_has_ended(now=database_now() - TO_BE_HEARD - SECOND)
    assert not is_ready()


def test_the_end_of_a_cluster_makes_no_old_answer_younger():
    answered(timedelta(minutes=5))
    a_cluster_has_ended(now=database_now())
    assert not is_ready()
