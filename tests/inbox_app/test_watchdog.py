"""What the watchdog does about a clock that somebody has set back."""

from datetime import timedelta

import pytest
from django_q.models import Schedule

from inbox_app.cluster.watchdog import MINUTELY, Watchdog, make_schedules
from sessions_app.clock import database_now

pytestmark = pytest.mark.django_db


class NoGroup:
    """A group that is not there yet."""

    def members(self):
        return frozenset()

    crew = members

    def kill(self):
        raise AssertionError("there is nothing to kill")


@pytest.mark.parametrize("name", MINUTELY)
@pytest.mark.parametrize(("ahead", "pulled_back"), [(timedelta(days=1), True), (timedelta(minutes=1), False)])
def test_a_schedule_that_a_clock_set_back_has_put_far_ahead_is_pulled_back(name, ahead, pulled_back):
    make_schedules(now=database_now())
    planned = database_now() + ahead
    Schedule.objects.filter(name=name).update(next_run=planned)
    Watchdog(NoGroup()).look()
    assert (Schedule.objects.get(name=name).next_run < planned) == pulled_back


def test_a_schedule_that_a_newer_version_brings_is_added_to_those_that_are_there():
    make_schedules(now=database_now())
    Schedule.objects.filter(name="cron").delete()
    Watchdog(NoGroup()).look()
    assert sorted(Schedule.objects.values_list("name", flat=True)) == sorted(MINUTELY)
