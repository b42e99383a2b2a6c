"""When an expression comes round, against a reckoning of our own that looks at every minute there is."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessions_app.cron.schedule import BadSchedule, checked_expression, checked_zone, next_slot, next_slots, retry_at

MINUTE = timedelta(minutes=1)


def utc(*when):
    return datetime(*when, tzinfo=UTC)


def looked_for(minutes, hours, time_zone, *, after, until):
    """Every whole minute whose wall clock says one of these minutes and hours: the plain meaning, day by day."""
    there, moment, found = ZoneInfo(time_zone), after.replace(second=0, microsecond=0) + MINUTE, []
    while moment <= until:
        wall = moment.astimezone(there)
        if wall.minute in minutes and wall.hour in hours:
            found.append(moment)
        moment += MINUTE
    return found


def slots(expression, time_zone, *, after, until):
    found, moment = [], after
    while (moment := next_slot(expression, time_zone, after=moment)) <= until:
        found.append(moment)
    return found


ZONES = ["UTC", "Asia/Kolkata", "America/Sao_Paulo", "Europe/London", "America/New_York", "Pacific/Chatham"]


@pytest.mark.parametrize("time_zone", ZONES)
@given(minute=st.integers(0, 59), hour=st.integers(4, 23), start=st.integers(0, 60 * 24 * 365), seconds=st.integers(0, 59))
def test_crn_02_a_fixed_time_comes_when_an_independent_reckoning_says(time_zone, minute, hour, start, seconds):
    after = utc(2026, 1, 1) + start * MINUTE + timedelta(seconds=seconds)
    expected = looked_for({minute}, {hour}, time_zone, after=after, until=after + timedelta(hours=50))
    assert next_slots(f"{minute} {hour} * * *", time_zone, after=after, count=2)[0] == expected[0]


@pytest.mark.parametrize("time_zone", ZONES)
@pytest.mark.parametrize(("expression", "minutes", "hours"), [("*/20 * * * *", {0, 20, 40}, range(24)), ("7 * * * *", {7}, range(24))])
def test_crn_02_what_runs_every_so_often_goes_on_through_both_clock_changes(time_zone, expression, minutes, hours):
    for day in (utc(2026, 3, 7), utc(2026, 3, 28), utc(2026, 4, 4), utc(2026, 9, 26), utc(2026, 10, 24), utc(2026, 10, 31)):
        until = day + timedelta(days=2)
        assert slots(expression, time_zone, after=day, until=until) == looked_for(minutes, hours, time_zone, after=day, until=until)


def test_a_skipped_hour_is_made_up_for_right_after_it():
    before = utc(2026, 3, 28, 12)
    assert slots("30 1 * * *", "Europe/London", after=before, until=before + timedelta(days=2)) == [utc(2026, 3, 29, 1), utc(2026, 3, 30, 0, 30)]


def test_a_repeated_hour_has_a_fixed_time_once():
    before = utc(2026, 10, 24, 12)
    assert slots("30 1 * * *", "Europe/London", after=before, until=before + timedelta(days=2)) == [utc(2026, 10, 25, 0, 30), utc(2026, 10, 26, 1, 30)]


@pytest.mark.parametrize("minutes", range(0, 180, 7))
def test_the_next_time_is_never_in_the_past_from_anywhere_in_a_repeated_hour(minutes):
    now = utc(2026, 10, 25, 0, 0) + minutes * MINUTE
    assert next_slot("45 1 * * *", "Europe/London", after=now) > now
    assert all(one < other for one, other in pairwise(next_slots("45 1 * * *", "Europe/London", after=now, count=3)))


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("0 0 30 2 *", "never comes"),
        ("0 0 31 4 *", "never comes"),
        ("0 0 */30 2 1#5", "never comes"),
        ("*/0 * * * *", "minute"),
        ("60 * * * *", "minute"),
        ("0 24 * * *", "hour"),
        ("0 0 0 * *", "day-of-month"),
        ("0 0 * 13 *", "month"),
        ("0 0 * * 8", "day-of-week"),
        ("0 0 * *", "five fields"),
        ("* * * * * *", "five fields"),
        ("@reboot", "five fields"),
        ("", "five fields"),
        ("   ", "five fields"),
        ("\x00", "five fields"),
        ("\u0660 0 * * *", "five fields"),
        ("0 0 * * \u017fun", "five fields"),
        ("1," * 5000 + "1 * * * *", "at most 255"),
    ],
)
def test_crn_07_what_cannot_be_read_or_never_comes_is_refused_with_the_reason(expression, why):
    with pytest.raises(BadSchedule, match=why):
        checked_expression(expression)


@pytest.mark.parametrize("expression", ["0 0 29 2 *", "0 0 L * *", "0 9 LW * *", "0 6 * * MON-FRI", "0 12 * * 5L", "0 0 * 2 MON#5", "*/5 0-6,22 1,15 JAN *"])
def test_what_cronsim_takes_is_taken(expression):
    assert checked_expression(f" {expression.replace(' ', '   ')}\t") == expression


@pytest.mark.parametrize("name", ["", "Mars/Olympus", "../etc/passwd", "europe/london", "+02:00", "UTC\x00"])
def test_an_unknown_zone_is_refused(name):
    with pytest.raises(BadSchedule, match="time_zone"):
        checked_zone(name)


@pytest.mark.parametrize(("failures", "minutes"), [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, None)])
def test_retries_come_after_1_2_4_8_and_16_minutes_and_no_seventh_try(failures, minutes):
    now = utc(2026, 1, 1)
    expected = minutes and now + minutes * MINUTE
    assert retry_at(failures, now=now, next_run_at=now + timedelta(days=1)) == expected


@pytest.mark.parametrize("minutes", [1, 15, 16])
def test_crn_14_a_retry_that_would_fall_on_the_next_slot_or_after_it_is_dropped(minutes):
    now = utc(2026, 1, 1)
    assert retry_at(5, now=now, next_run_at=now + minutes * MINUTE) is None
    assert retry_at(5, now=now, next_run_at=now + 17 * MINUTE) == now + 16 * MINUTE


@pytest.mark.parametrize("name", ["localtime", "Factory"])
def test_a_zone_that_is_another_on_each_machine_is_none(name):
    with pytest.raises(BadSchedule):
        checked_zone(name)


def test_crn_07_where_the_calendar_ends_no_slot_comes_and_nothing_breaks():
    with pytest.raises(BadSchedule):
        next_slot("* * * * *", "UTC", after=datetime.max.replace(tzinfo=UTC))
