"""Cron over REST. Views validate, call one action and render."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from sessions_app.clock import database_now
from sessions_app.cron import actions, announcements, finding, serializers
from sessions_app.cron.permissions import ActsOnCron, ManagesCron
from sessions_app.cron.schedule import BadSchedule, next_slots
from sessions_app.views import ApiView, caller_of, errors, project_meant, valid, valid_query
from suzent_site.errors import Invalid


class Jobs(ApiView):
    permission_classes = [ManagesCron]

    @extend_schema(
        operation_id="cron_jobs_list", parameters=[serializers.ListJobs], responses={200: serializers.JobPageOut, **errors(400, 403, 404)}
    )
    def get(self, request: Request) -> Response:
        """The jobs of the project that are not deleted."""
        asked = valid_query(serializers.ListJobs, request)
        jobs = finding.jobs_of(caller_of(request), project=asked.get("project"))
        page, next_cursor = finding.page_of_jobs(jobs, limit=asked["limit"], cursor=asked.get("cursor", ""))
        shown = serializers.JobOut(page, many=True).data
        return Response({"jobs": shown, "has_more": next_cursor is not None, "next_cursor": next_cursor})

    @extend_schema(
        operation_id="cron_jobs_create",
        request=serializers.NewJob,
        responses={201: serializers.JobOut, **errors(400, 403, 404, 409, 413, 415)},
    )
    def post(self, request: Request) -> Response:
        """Make a job, and the session cron-<job_id> that runs it."""
        asked = valid(serializers.NewJob, request.data)
        project = project_meant(caller_of(request), slug=asked.pop("project", None))
        return Response(serializers.JobOut(actions.create_job(project, now=database_now(), **asked)).data, status=201)


class JobDetail(ApiView):
    permission_classes = [ManagesCron]

    @extend_schema(operation_id="cron_jobs_read", responses={200: serializers.JobOut, **errors(403, 404)})
    def get(self, request: Request, job_id: str) -> Response:
        """One job."""
        return Response(serializers.JobOut(finding.job_named(caller_of(request), job_id)).data)

    @extend_schema(
        operation_id="cron_jobs_change",
        request=serializers.ChangeJob,
        responses={200: serializers.JobOut, **errors(400, 403, 404, 413, 415)},
    )
    def patch(self, request: Request, job_id: str) -> Response:
        """Change a job. A new schedule, or switching it on, counts from now on: no slot of the past is made up for."""
        job = finding.job_named(caller_of(request), job_id)
        asked = valid(serializers.ChangeJob, request.data)
        return Response(serializers.JobOut(actions.change_job(job, now=database_now(), **asked)).data)

    @extend_schema(operation_id="cron_jobs_delete", request=None, responses={204: None, **errors(403, 404)})
    def delete(self, request: Request, job_id: str) -> Response:
        """End a job for good. Its session is archived; its runs stay readable until retention."""
        caller = caller_of(request)
        actions.delete_job(finding.job_named(caller, job_id), now=database_now(), who=caller.label)
        return Response(status=204)


class JobRun(ApiView):
    permission_classes = [ActsOnCron]

    @extend_schema(operation_id="cron_jobs_run", request=None, responses={202: serializers.RunOut, **errors(403, 404, 409)})
    def post(self, request: Request, job_id: str) -> Response:
        """Run it once now, beside its slots. 409 still_running while a run of it has not ended."""
        run = actions.run_now(finding.job_named(caller_of(request), job_id), now=database_now())
        return Response(serializers.RunOut(run).data, status=202)


class Runs(ApiView):
    permission_classes = [ManagesCron]

    @extend_schema(
        operation_id="cron_runs_list", parameters=[serializers.ListRuns], responses={200: serializers.RunPageOut, **errors(400, 403, 404)}
    )
    def get(self, request: Request) -> Response:
        """Runs, the newest first: what was planned, how it ended and whether it was announced."""
        asked = valid_query(serializers.ListRuns, request)
        runs = finding.runs_of(caller_of(request), project=asked.pop("project", None))
        page, next_cursor = finding.page_of_runs(runs, **asked)
        return Response({"runs": serializers.RunOut(page, many=True).data, "has_more": next_cursor is not None, "next_cursor": next_cursor})


class Announcements(ApiView):
    permission_classes = [ActsOnCron]
    http_method_names = ["get"]  # a HEAD would take what nobody then sees

    @extend_schema(
        operation_id="cron_announcements",
        parameters=[serializers.WhichProject],
        responses={200: serializers.AnnouncementsOut, **errors(400, 403, 404)},
    )
    def get(self, request: Request) -> Response:
        """Take what waits to be told, at most 20, oldest first: each is given to one reader only. The runs keep all of it."""
        asked = valid_query(serializers.WhichProject, request)
        project = finding.project_within(caller_of(request), asked.get("project"))
        return Response({"announcements": announcements.drain(project)})


class Preview(ApiView):
    permission_classes = [ManagesCron]

    @extend_schema(
        operation_id="cron_preview", parameters=[serializers.Preview], responses={200: serializers.PreviewOut, **errors(400, 403)}
    )
    def get(self, request: Request) -> Response:
        """When a job with this expression would run next, five times."""
        asked = valid_query(serializers.Preview, request)
        return Response({"next_runs": [moment.isoformat() for moment in _next(**asked)]})


def _next(*, expression: str, time_zone: str) -> list[Any]:
    try:
        return next_slots(expression, time_zone, after=database_now(), count=serializers.TIMES_SHOWN)
    except BadSchedule as error:
        raise Invalid(error.field, error.why) from error
