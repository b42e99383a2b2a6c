"""When a cron expression comes round: pure, over cronsim, in the zone that the job names.

Five fields. An hour that a clock change skips is made up for right after it; in one that is repeated a job with a fixed
minute and hour runs once, and one that runs "every so often" goes on running (as Debian's cron does).
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import islice
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError

EXPRESSION_LIMIT = 255  # characters
FIELDS = ("minute", "hour", "day-of-month", "month", "day-of-week")
MEANT = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31, L or LW",
    "month": "1 to 12 or JAN to DEC",
    "day-of-week": "0 to 7 or SUN to SAT, 5L or 5#2",
}
DAY, MONTH = 2, 3
NO_PLACES = frozenset({"localtime", "Factory"})  # listed on some machines: whatever that machine is set to, and "not set yet"
FIRST_RETRY = timedelta(minutes=1)
FAILURES_AT_MOST = 6  # in a row; then the job is switched off


class BadSchedule(ValueError):
    """An expression or a zone that no time can be reckoned by; ``field`` says which, the text says why."""

    def __init__(self, field: str, why: str) -> None:
        self.field = field
        self.why = why
        super().__init__(f"{field}: {why}")


def checked_expression(expression: str) -> str:
    """The expression with single blanks between its fields. Raises BadSchedule, if it cannot be read or never comes."""
    if len(expression) > EXPRESSION_LIMIT:
        raise BadSchedule("expression", f"must be at most {EXPRESSION_LIMIT} characters; it has {len(expression)}")
    written = " ".join(expression.split())
    next_slot(written, "UTC", after=datetime(2000, 1, 1, tzinfo=UTC))
    return written


def checked_zone(name: str) -> str:
    """Raises BadSchedule."""
    zone(name)
    return name


def zone(name: str) -> ZoneInfo:
    """Raises BadSchedule for a zone that this machine does not know."""
    if name not in _zones():
        raise BadSchedule("time_zone", "must be the name of a zone as in Europe/London or UTC")
    return ZoneInfo(name)


@cache
def _zones() -> frozenset[str]:
    return frozenset(available_timezones()) - NO_PLACES


def next_slot(expression: str, time_zone: str, *, after: datetime) -> datetime:
    """The first time after ``after`` at which the expression comes round, in UTC. Raises BadSchedule."""
    return next(_slots(expression, time_zone, after=after))


def next_slots(expression: str, time_zone: str, *, after: datetime, count: int) -> list[datetime]:
    """The next ``count`` of them, with the zone's own clock. Raises BadSchedule."""
    there = zone(time_zone)
    return [slot.astimezone(there) for slot in islice(_slots(expression, time_zone, after=after), count)]


def _slots(expression: str, time_zone: str, *, after: datetime) -> Iterator[datetime]:
    there = zone(time_zone)
    if not expression.isascii() or len(expression.split()) != len(FIELDS):
        raise BadSchedule("expression", f"must have five fields: {', '.join(FIELDS)}")
    try:
        for found in CronSim(expression, after.astimezone(there)):
            slot = found.astimezone(UTC)
            if slot > after:  # in a repeated hour cronsim may first name the earlier of two equal wall times
                yield slot
                after = slot
    except CronSimError as error:
        raise BadSchedule("expression", _reason(expression, str(error))) from error
    except OverflowError as error:  # a moment at the end of time, which only a hand in the table can have put there
        raise BadSchedule("expression", "never comes: the calendar ends before it") from error
    raise BadSchedule("expression", "never comes: there is no such day")


def _reason(expression: str, complaint: str) -> str:
    field = complaint.removeprefix("Bad ")
    if field == FIELDS[DAY] and _is_sound_in_some_month(expression):
        return "never comes: none of these months has such a day"
    return f"its {field} must be made of {MEANT[field]}, with * , - and /"


def _is_sound_in_some_month(expression: str) -> bool:
    fields = expression.split()
    fields[MONTH] = "*"
    try:
        CronSim(" ".join(fields), datetime(2000, 1, 1, tzinfo=UTC))
    except CronSimError:
        return False
    return True


def retry_at(failures: int, *, now: datetime, next_run_at: datetime | None) -> datetime | None:
    """When to try again after so many failures in a row: 1, 2, 4, 8, 16 min later.

    None: not at all, because the next slot comes first (it counts as the retry) or because that was the last try.
    """
    if next_run_at is None or failures >= FAILURES_AT_MOST:
        return None
    moment = now + FIRST_RETRY * 2 ** (failures - 1)
    return moment if moment < next_run_at else None
