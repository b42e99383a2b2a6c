"""Cron for scripts: jobs, their runs, and a look at the clock by hand."""

from __future__ import annotations

from typing import Any

from sessions_app.authentication import Caller
from sessions_app.clock import database_now
from sessions_app.cron import actions, finding, scheduler
from sessions_app.cron.models import CronJob
from sessions_app.cron.serializers import JobOut, RunOut
from sessions_app.management.project_option import add_project, chosen_project
from suzent_site.script_command import AddVerb, ScriptCommand

LISTED = 1000  # jobs or runs at most
OPERATOR = Caller(project_id=None, session=None, label="the command line")  # whoever may run commands here reaches every project


class Command(ScriptCommand):
    help = "Make, see and run cron jobs. One line of JSON on standard output, in the shape of /api/cron."

    def verbs(self, add: AddVerb) -> None:
        create = add("create", help="make a job and its session")
        add_project(create)
        create.add_argument("--name", required=True, help="what it is called")
        create.add_argument("--expression", required=True, help="five fields, quoted: '0 6 * * MON-FRI'")
        create.add_argument("--time-zone", default="UTC", help="whose clock it follows (UTC)")
        create.add_argument("--prompt", required=True, help="what the agent is asked")
        create.add_argument("--runtime", default="", help="one of the project's; left out, its first")
        create.add_argument("--silent", action="store_true", help="announce nothing")
        add_project(add("list", help="the jobs"))
        runs = add("runs", help="the newest runs")
        runs.add_argument("--job", metavar="ID", default=None, help="only this job's")
        for verb, what in (("run", "run it once now"), ("enable", "switch it on"), ("disable", "switch it off"), ("delete", "end it for good")):
            add(verb, help=what).add_argument("job_id", metavar="ID")
        add("tick", help="queue what is due now, as a cluster does every minute")

    def create(self, options: dict[str, Any]) -> dict[str, Any]:
        mode = CronJob.DeliveryMode.SILENT if options["silent"] else CronJob.DeliveryMode.ANNOUNCE
        job = actions.create_job(
            chosen_project(options["project"]), now=database_now(), name=options["name"], expression=options["expression"],
            time_zone=options["time_zone"], prompt=options["prompt"], runtime=options["runtime"], delivery_mode=mode,
        )  # fmt: skip
        return _shown(job)

    def runs(self, options: dict[str, Any]) -> list[dict[str, Any]]:
        page, _ = finding.page_of_runs(finding.runs_of(OPERATOR), limit=LISTED, job_id=options["job"])
        return [dict(RunOut(run).data) for run in page]

    def run(self, options: dict[str, Any]) -> dict[str, Any]:
        return dict(RunOut(actions.run_now(_named(options), now=database_now())).data)

    def enable(self, options: dict[str, Any]) -> dict[str, Any]:
        return _shown(actions.change_job(_named(options), now=database_now(), active=True))

    def disable(self, options: dict[str, Any]) -> dict[str, Any]:
        return _shown(actions.change_job(_named(options), now=database_now(), active=False))

    def delete(self, options: dict[str, Any]) -> dict[str, Any]:
        job = _named(options)
        actions.delete_job(job, now=database_now())
        return {"job_id": job.pk, "deleted": True}

    def tick(self, options: dict[str, Any]) -> dict[str, Any]:
        return {"queued": scheduler.tick(now=database_now())}

    def list(self, options: dict[str, Any]) -> list[dict[str, Any]]:
        project = chosen_project(options["project"]).slug if options["project"] else None
        page, _ = finding.page_of_jobs(finding.jobs_of(OPERATOR, project=project), limit=LISTED)
        return [_shown(job) for job in page]


def _named(options: dict[str, Any]) -> CronJob:
    return finding.job_named(OPERATOR, options["job_id"])


def _shown(job: CronJob) -> dict[str, Any]:
    return dict(JobOut(job).data)
