"""What the agent of a cron job is told beside its prompt, as a structured header that only the server writes."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sessions_app.cron.models import CronJob, CronRun
from sessions_app.cron.schedule import BadSchedule, zone
from sessions_app.transcripts import PROVENANCE


def header(run: CronRun) -> dict[str, Any]:
    """The part that goes with the user entry: which job it is, what its clock says, and how the last run ended."""
    job = run.job
    return {
        "type": PROVENANCE,
        "kind": "cron",
        "message_id": run.key,
        "sender": None,
        "sender_label": job.name,
        "job_id": job.pk,
        "job": job.name,
        "run_id": run.pk,
        "trigger": run.trigger,
        "attempt": run.attempt,
        "slot": local(run.slot, job.time_zone),
        "local_time": local(run.started_at, job.time_zone),
        "time_zone": job.time_zone,
        "last_run": _last_run(job),
    }


def _last_run(job: CronJob) -> dict[str, Any] | None:
    if not job.last_status:
        return None
    return {"status": job.last_status, "started_at": local(job.last_run_at, job.time_zone), "error": job.last_error}


def local(moment: datetime | None, time_zone: str) -> str | None:
    """ISO 8601 by the clock of the zone, to the second, with its offset; in UTC where the zone is not known here any more, or has no such moment."""
    if moment is None:
        return None
    try:
        return moment.astimezone(zone(time_zone)).isoformat(timespec="seconds")
    except (BadSchedule, OverflowError):
        return moment.isoformat(timespec="seconds")
