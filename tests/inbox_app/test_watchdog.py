"""What the watchdog does about a clock that somebody has set back."""

from datetime import timedelta

import pytest
from django_q.models import Schedule

from inbox_app.cluster.watchdog import SWEEP, Watchdog, make_schedules
from sessions_app.clock import database_now

pytestmark = pytest.mark.django_db


class NoGroup:
    """A group that is not there yet."""

    def members(self):
        return frozenset()

    crew = members

    def kill(self):
        raise AssertionError("there is nothing to kill")


@pytest.mark.parametrize(("ahead", "pulled_back"), [(timedelta(days=1), True), (timedelta(minutes=1), False)])
def test_a_sweep_that_a_clock_set_back_has_put_far_ahead_is_pulled_back(ahead, pulled_back):
    make_schedules()
    planned = database_now() + ahead
    Schedule.objects.filter(name=SWEEP).update(next_run=planned)
    Watchdog(NoGroup()).look()
    assert (Schedule.objects.get(name=SWEEP).next_run < planned) == pulled_back
