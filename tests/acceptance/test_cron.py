"""Cron by real processes: the cluster's own schedule, a worker killed in the middle of a run, and the next slot."""

import signal
from datetime import UTC, datetime, timedelta

import pytest

pytestmark = pytest.mark.once

CRON = {"SUZENT_LEASE_SECONDS": "3", "SUZENT_ALLOW_CRASH": "1"}


def runs(site, job):
    rows = site.rows("SELECT status, \"trigger\", error, result FROM sessions_app_cronrun WHERE job_id = ? ORDER BY id", job)
    return [tuple(row) for row in rows]


def statuses(site, job):
    return [status for status, *_ in runs(site, job)]


def let_a_slot_come(site, job):
    """As if its minute had struck."""
    site.rows("UPDATE sessions_app_cronjob SET next_run_at = ? WHERE job_id = ?", datetime.now(UTC) - timedelta(seconds=1), job)


def make_job(site, prompt):
    site.command("project", "create", "office")
    return site.command(
        "cron", "create", "--project", "office", "--name", "Reporter", "--expression", "0 0 1 1 *", "--prompt", prompt, "--runtime", "scripted"
    )["job_id"]


def test_a_killed_worker_leaves_no_run_running_and_the_next_slot_runs(make_site):
    """CRN-02, CRN-09: death right after the claim, kill -9 in the middle of a run, two schedulers, the cluster's own schedule."""
    site = make_site(SUZENT_FAULTS="cron.after_claim:once:exit", **CRON)
    job = make_job(site, "!sleep 600")
    site.cluster()
    site.command("cron", "run", job)
    site.wait_for(lambda: statuses(site, job) == ["error"], within=60)
    let_a_slot_come(site, job)
    site.wait_for(lambda: statuses(site, job) == ["error", "running"], within=75)  # q2 looks at its schedules every 30 s
    site.kill(*site.crew.workers, number=signal.SIGKILL)
    site.wait_for(lambda: statuses(site, job) == ["error", "error", "queued"], within=60)
    assert {error for _, _, error, _ in runs(site, job)[:2]} == {"the process that ran it is gone"}
    site.rows("UPDATE sessions_app_cronjob SET prompt = 'Good morning.' WHERE job_id = ?", job)
    let_a_slot_come(site, job)
    assert site.command("cron", "tick") == {"queued": 1}
    assert site.command("cron", "tick") == {"queued": 0}
    site.wait_for(lambda: statuses(site, job) == ["error", "error", "skipped", "success"], within=40)
    assert runs(site, job)[3][1:] == ("schedule", "", "ok: Good morning.")
