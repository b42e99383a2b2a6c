"""What people do to cron jobs: one transaction each, the job's lane locked first."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypedDict, Unpack

from sessions_app import actions, lanes
from sessions_app.cron import runs
from sessions_app.cron.models import NAME_LIMIT, CronJob, CronRun
from sessions_app.cron.schedule import BadSchedule, checked_expression, checked_zone, next_slot
from sessions_app.models import Project, Session
from sessions_app.text import is_blank, refuse_unstorable
from suzent_site.errors import Conflict, Invalid, NotFound
from suzent_site.transactions import durable

PROMPT_LIMIT = 20_000  # characters, as of a message
MODEL_LIMIT = 200  # characters


class StillRunning(Conflict):
    """A run of this job has not ended yet; there is at most one at a time."""

    code = "still_running"


class AboutJob(TypedDict, total=False):
    """What may be said of a job; what is left out stays as it is, or gets its default. An empty model is the runtime's own."""

    name: str
    expression: str
    time_zone: str
    prompt: str
    delivery_mode: str
    active: bool
    runtime: str
    model: str


def create_job(project: Project, *, now: datetime, **about: Unpack[AboutJob]) -> CronJob:
    """Make a job and the session ``cron-<job_id>`` that runs it. Raises Invalid, Conflict."""
    job = CronJob(job_id=secrets.token_hex(6), planned_at=now, created_at=now, updated_at=now)
    for field in ("name", "expression", "prompt"):
        if field not in about:
            raise Invalid(field, "is required")
    for field, value in _sound(about).items():
        setattr(job, field, value)
    job.next_run_at = _planned(job, now=now) if job.active else None
    config = {"model": _sound_model(about["model"])} if about.get("model") else {}
    with durable():
        job.session = actions.insert_session_of_ours(
            project, f"{runs.SESSION_PREFIX}{job.pk}", now=now, title=job.name, runtime=about.get("runtime", ""),
            config=config, kind=Session.Kind.CRON,
        )  # fmt: skip
        job.save(force_insert=True)
    return job


def change_job(job: CronJob, *, now: datetime, **about: Unpack[AboutJob]) -> CronJob:
    """Change what may change of a job; what a run of it does meanwhile stays untouched. Raises Invalid, NotFound.

    Another expression or zone, and switching it on, count from now on: no slot of the past is made up for.
    """
    changes = _sound(about)
    with durable():
        current = _locked(job)
        agent = _sound_agent(current.session, about)
        edit = _Edit(current, changes, now)
        changes |= edit.consequences()
        CronJob.objects.filter(pk=job.pk).update(**changes, updated_at=now)
        if changes.get("active") is False and current.active:
            runs.call_off(current, why="the job was switched off", now=now)
        elif edit.is_rescheduled:
            runs.call_off(current, why="the job was rescheduled", now=now, retries_only=True)
        if "name" in changes:
            agent["title"] = changes["name"]
        if agent:
            Session.objects.filter(pk=current.session_id).update(**agent, updated_at=now)
    return CronJob.objects.with_home().get(pk=job.pk)


@dataclass(frozen=True)
class _Edit:
    """An edit of a job as it is now, and what follows from it."""

    job: CronJob
    changes: dict[str, Any]
    now: datetime

    @property
    def is_rescheduled(self) -> bool:
        return any(self.changes.get(field, was) != was for field, was in (("expression", self.job.expression), ("time_zone", self.job.time_zone)))

    def consequences(self) -> dict[str, Any]:
        """A slot that is due and has not been taken yet is lost by no edit but of the schedule itself."""
        active = self.changes.get("active", self.job.active)
        if not active:
            return {"next_run_at": None}
        if self.job.active and not self.is_rescheduled:
            return {}
        planned = _planned(self.job, now=self.now, expression=self.changes.get("expression"), time_zone=self.changes.get("time_zone"))
        anew = {} if self.job.active else {"retry_count": 0, "disabled_reason": ""}
        return {"next_run_at": planned, "planned_at": self.now, **anew}


def delete_job(job: CronJob, *, now: datetime, who: str = "") -> None:
    """End a job for good: nothing of it runs any more, its session is archived. Its runs stay until retention.

    ``who`` did it, for those that its sub-agents' tasks are shown to. Raises NotFound.
    """
    with durable():
        current = _locked(job)
        CronJob.objects.filter(pk=job.pk).update(active=False, next_run_at=None, updated_at=now)
        runs.call_off(current, why="the job was deleted", now=now)
    actions.archive_session(current.session, now=now, who=who)


def run_now(job: CronJob, *, now: datetime) -> CronRun:
    """Run it once beside its slots, also where it is switched off. Raises StillRunning, NotFound."""
    with durable():
        run = runs.queue_by_hand(_locked(job), now=now)
    if run is None:
        raise StillRunning
    return run


def _locked(job: CronJob) -> CronJob:
    """As it is now; until the transaction ends nobody else changes it. Raises NotFound for one that is deleted."""
    lanes.lock([job.lane_key])
    current = CronJob.objects.kept().with_home().filter(pk=job.pk).first()
    if current is None:
        raise NotFound
    return current


def _planned(job: CronJob, *, now: datetime, expression: str | None = None, time_zone: str | None = None) -> datetime:
    try:
        return next_slot(expression or job.expression, time_zone or job.time_zone, after=now)
    except BadSchedule as error:
        raise Invalid(error.field, error.why) from error


# --- What may be said ------------------------------------------------------------------------------------------
def _sound(about: AboutJob) -> dict[str, Any]:
    """The job's own columns, checked."""
    checks: dict[str, Callable[[Any], Any]] = {
        "name": lambda text: _sound_text("name", text, most=NAME_LIMIT),
        "prompt": lambda text: _sound_text("prompt", text, most=PROMPT_LIMIT),
        "expression": _sound_expression,
        "time_zone": _sound_zone,
        "delivery_mode": _sound_mode,
        "active": bool,
    }
    given: dict[str, Any] = dict(about)
    return {field: check(given[field]) for field, check in checks.items() if field in given}


def _sound_text(field: str, text: str, *, most: int) -> str:
    if is_blank(text):
        raise Invalid(field, "must not be blank")
    if len(text) > most:
        raise Invalid(field, f"must be at most {most:,} characters; it has {len(text):,}")
    refuse_unstorable(text, field=field)
    return text


def _sound_expression(expression: str) -> str:
    try:
        return checked_expression(expression)
    except BadSchedule as error:
        raise Invalid(error.field, error.why) from error


def _sound_zone(name: str) -> str:
    try:
        return checked_zone(name)
    except BadSchedule as error:
        raise Invalid(error.field, error.why) from error


def _sound_mode(mode: str) -> str:
    if mode not in CronJob.DeliveryMode.values:
        raise Invalid("delivery_mode", f"must be one of {', '.join(CronJob.DeliveryMode.values)}")
    return mode


def _sound_model(model: str) -> str:
    if len(model) > MODEL_LIMIT:
        raise Invalid("model", f"must be at most {MODEL_LIMIT} characters; it has {len(model)}")
    refuse_unstorable(model, field="model")
    return model


def _sound_agent(session: Session, about: AboutJob) -> dict[str, Any]:
    """What goes into the job's session: its runtime, and its model as part of the config."""
    agent: dict[str, Any] = {}
    if "runtime" in about:
        agent["runtime"] = actions.allowed_runtime(session.project, about["runtime"])
    if "model" in about:
        model = {"model": _sound_model(about["model"])} if about["model"] else {}
        agent["config"] = {name: value for name, value in session.config.items() if name != "model"} | model
    return agent
