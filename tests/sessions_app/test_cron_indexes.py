"""Every index of cron has a reader; here each reader is seen to use it, on the database that the tests run on."""

from datetime import timedelta

import pytest
from django.db import connection

from sessions_app.clock import database_now
from sessions_app.cron import announcements, finding, runs
from sessions_app.cron.models import CronJob, CronRun
from sessions_app.lanes import Hold
from sessions_app.models import Lane, Session
from tests.factories import ProjectFactory
from tests.inbox_app.test_indexes import plan_of

pytestmark = pytest.mark.django_db
JOBS, RUNS = 300, 9_000


@pytest.fixture
def many():
    """Jobs of which one in ten is active, one with a long history, a few runs queued and a few announced."""
    project, now = ProjectFactory(slug="p"), database_now()
    ids = [f"{number:012x}" for number in range(JOBS)]
    Session.objects.bulk_create([
        Session(agent_id=f"cron-{job}", project=project, kind="cron", created_at=now, updated_at=now) for job in ids
    ])
    Lane.objects.bulk_create([Lane(key=f"agent:cron-{job}") for job in ids])
    CronJob.objects.bulk_create([
        CronJob(
            job_id=job, session_id=f"cron-{job}", name="x", expression="0 6 * * *", prompt="x", active=number % 10 == 0,
            next_run_at=now + timedelta(hours=number) if number % 10 == 0 else None, planned_at=now, created_at=now, updated_at=now,
        )
        for number, job in enumerate(ids)
    ])
    CronRun.objects.bulk_create([past(ids[number % JOBS if number % 150 else 7], number, now=now) for number in range(RUNS)])
    CronRun.objects.bulk_create([
        CronRun(job_id=job, slot=now, trigger="schedule", attempt=1, status="queued", due_at=now, queued_at=now) for job in ids[:20]
    ])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return ids


def past(job, number, *, now):
    at = now - timedelta(minutes=number + 1)
    told = {"announcement": "sent", "announced_at": at} if number % 200 == 0 else {}
    return CronRun(
        job_id=job, slot=at, trigger="schedule", attempt=1, status="success", due_at=at, queued_at=at, started_at=at, finished_at=at, **told
    )


NOW = database_now
READERS = {
    "cron_job_due": lambda _: list(CronJob.objects.due(NOW()).order_by("next_run_at")),
    "cron_job_planned": lambda _: list(CronJob.objects.planned_ahead(NOW() + timedelta(seconds=1))),
    "cron_run_once_per_slot": lambda ids: CronRun.objects.filter(job=ids[5], slot=NOW()).exists(),
    "cron_run_one_open": lambda ids: (runs.next_due([f"agent:cron-{ids[5]}"]), runs.begin([Hold(f"agent:cron-{ids[5]}", "x", 1)], now=NOW())),
    "cron_run_newest": lambda ids: finding.page_of_runs(CronRun.objects.all(), limit=20, job_id=ids[7]),
    "cron_run_finished": lambda _: list(CronRun.objects.finished_before(NOW() - timedelta(days=4)).order_by("finished_at")[:50]),
    "cron_run_announced": lambda _: announcements.waiting(None),
}
# SQLite gives the index of a unique constraint without a condition a name of its own.
UNIQUE = {"cron_run_once_per_slot": "sqlite_autoindex_sessions_app_cronrun_"}


def test_each_reader_uses_its_index(many):
    plans = {index: plan_of(lambda index=index: READERS[index](many)) for index in READERS}
    assert {index: plan for index, plan in plans.items() if known_as(index) not in plan} == {}


def known_as(index):
    return UNIQUE.get(index, index) if connection.vendor == "sqlite" else index


def test_a_lane_that_is_no_cron_jobs_costs_the_claim_nothing(django_assert_num_queries):
    now, hold = NOW(), Hold("agent:planner", "x", 1)
    with django_assert_num_queries(0):
        assert runs.begin([hold], now=now) == []
        assert runs.next_due([hold.key]) == {}
        runs.close_lost([hold.key], now=now)
        runs.take_back([hold.key], now=now)
