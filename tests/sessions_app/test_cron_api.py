"""Cron over REST: jobs, runs, announcements."""

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from django.test import Client

from sessions_app.cron.models import CronJob, CronRun
from sessions_app.models import Session
from tests.factories import CronJobFactory
from tests.inbox_app.cron_days import MINUTE, MONDAY, play
from tests.people import browser_of
from tests.rest import ONLOOKER, Api, refused, staff

pytestmark = pytest.mark.django_db
ODD = "\u202egpj\u200b\x1b[2J<b>👩‍👩‍👧</b>"


def a_job(**changes):
    return {"name": "Morning", "expression": "0 6 * * *", "prompt": "Good morning.", **changes}


def made(api, **changes):
    answer = api.post("/api/cron/jobs", a_job(**changes))
    assert answer.status_code == 201, answer.json()
    return answer.json()


# --- jobs ------------------------------------------------------------------------------------------------------


def test_a_job_is_made_with_its_session_and_says_when_it_runs(town):
    job = made(town.owner, runtime="scripted", model="small", time_zone="Asia/Kolkata")
    session = Session.objects.get(pk=job["agent_id"])
    assert (job["agent_id"], session.kind, session.runtime) == (f"cron-{job['job_id']}", "cron", "scripted")
    assert (job["model"], job["active"], job["last_status"], job["delivery_mode"]) == ("small", True, "", "announce")
    assert [moment[10:] for moment in job["next_runs"]] == ["T06:00:00+05:30"] * 5
    assert datetime.fromisoformat(job["next_run_at"]) == datetime.fromisoformat(job["next_runs"][0])
    assert town.owner.get(f"/api/cron/jobs/{job['job_id']}").json() == job
    assert town.owner.get("/api/cron/jobs").json() == {"jobs": [job], "has_more": False, "next_cursor": None}


@pytest.mark.parametrize("time_zone", ["Asia/Kolkata", "America/Sao_Paulo"])
def test_crn_03_list_detail_and_preview_show_the_same_instant(town, time_zone):
    job = made(town.owner, expression="0 21 * * *", time_zone=time_zone)
    listed = town.owner.get("/api/cron/jobs").json()["jobs"][0]
    preview = town.owner.get("/api/cron/preview", expression="0 21 * * *", time_zone=time_zone).json()
    assert preview["next_runs"] == job["next_runs"] == listed["next_runs"]
    there = datetime.fromisoformat(job["next_run_at"]).astimezone(ZoneInfo(time_zone))
    assert (there.hour, there.minute) == (21, 0)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        *(({"expression": expression}, "expression") for expression in (
            "0 0 30 2 *", "0 0 31 4 *", "*/0 * * * *", "60 * * * *", "* * * * * *", "@reboot", "* " * 5000, "", "\x00", 5, None, "0 0 */30 2 1#5",
        )),
        ({"time_zone": "Mars/Olympus"}, "time_zone"),
        ({"time_zone": "../UTC"}, "time_zone"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": "  \n"}, "prompt"),
        ({"prompt": "\u200b\u2800"}, "prompt"),
        ({"prompt": "x" * 20_001}, "prompt"),
        ({"prompt": "a\x00b"}, "prompt"),
        ({"prompt": "\ud800"}, "prompt"),
        ({"name": "x" * 201}, "name"),
        ({"name": " "}, "name"),
        ({"name": "\ufeff"}, "name"),
        ({"name": "a\x00"}, "name"),
        ({"delivery_mode": "shout"}, "delivery_mode"),
        ({"active": 1}, "active"),
        ({"active": "true"}, "active"),
        ({"runtime": "llm"}, "runtime"),
        ({"model": 5}, "model"),
        ({"model": "\x00"}, "model"),
        ({"project": "elsewhere"}, None),
        ({"next_run_at": "2026-01-01T00:00:00Z"}, "next_run_at"),
    ],
    ids=lambda value: ascii(value)[:40],
)  # fmt: skip
def test_crn_07_a_bad_field_is_named_and_no_job_is_made(town, body, field):
    answer = town.owner.post("/api/cron/jobs", a_job(**body))
    assert refused(answer, 404 if field is None else 400, field=field)
    assert not CronJob.objects.exists()
    assert not Session.objects.filter(kind="cron").exists()


@pytest.mark.parametrize("field", ["expression", "time_zone", "prompt", "name", "runtime"])
def test_crn_07_a_patch_is_checked_in_the_same_way_and_changes_nothing_when_refused(town, field):
    job = made(town.owner)
    bad = {"expression": "0 0 30 2 *", "time_zone": "Mars/Olympus", "prompt": "", "name": "\x00", "runtime": "llm"}
    assert refused(town.owner.patch(f"/api/cron/jobs/{job['job_id']}", {"name": "other", field: bad[field]}), 400, field=field)
    assert town.owner.get(f"/api/cron/jobs/{job['job_id']}").json() == job


def test_crn_07_the_reason_is_said(town):
    said = town.owner.post("/api/cron/jobs", a_job(expression="0 0 30 2 *")).json()["detail"]
    assert said == "expression: never comes: none of these months has such a day"


def test_names_and_prompts_come_back_as_they_were_given(town):
    job = made(town.owner, name=ODD.replace("\x1b", ""), prompt=f" {ODD}\r\n")
    assert (job["name"], job["prompt"]) == (ODD.replace("\x1b", ""), f" {ODD}\r\n")


def test_a_job_is_changed_switched_off_and_on(town):
    job = made(town.owner)
    path = f"/api/cron/jobs/{job['job_id']}"
    off = town.owner.patch(path, {"active": False}).json()
    assert (off["active"], off["next_run_at"], off["next_runs"]) == (False, None, [])
    on = town.owner.patch(path, {"active": True, "expression": "0 7 * * *", "model": "large"}).json()
    assert (on["active"], on["expression"], on["model"], on["next_runs"][0][11:16]) == (True, "0 7 * * *", "large", "07:00")


def test_a_deleted_job_is_gone_and_its_runs_stay(town):
    job = made(town.owner)
    town.owner.post(f"/api/cron/jobs/{job['job_id']}/run")
    assert town.owner.delete(f"/api/cron/jobs/{job['job_id']}").status_code == 204
    assert refused(town.owner.get(f"/api/cron/jobs/{job['job_id']}"), 404)
    assert refused(town.owner.delete(f"/api/cron/jobs/{job['job_id']}"), 404)
    assert town.owner.get("/api/cron/jobs").json()["jobs"] == []
    assert [run["status"] for run in town.owner.get("/api/cron/runs", job_id=job["job_id"]).json()["runs"]] == ["skipped"]


def test_pages_of_jobs_go_on_where_the_last_ended(town):
    ids = sorted(made(town.owner, name=f"job {number}")["job_id"] for number in range(3))
    first = town.owner.get("/api/cron/jobs", limit=2).json()
    second = town.owner.get("/api/cron/jobs", limit=2, cursor=first["next_cursor"]).json()
    assert [job["job_id"] for job in first["jobs"] + second["jobs"]] == ids
    assert (first["has_more"], second["has_more"]) == (True, False)
    assert refused(town.owner.get("/api/cron/jobs", cursor="forged"), 400, field="cursor")


# --- who may ---------------------------------------------------------------------------------------------------

CALLS = [
    ("get", "/api/cron/jobs"), ("post", "/api/cron/jobs"), ("get", "/api/cron/jobs/{id}"), ("patch", "/api/cron/jobs/{id}"),
    ("delete", "/api/cron/jobs/{id}"), ("post", "/api/cron/jobs/{id}/run"), ("get", "/api/cron/runs"),
    ("get", "/api/cron/announcements"), ("get", "/api/cron/preview"),
]  # fmt: skip


def called(api, method, path):
    return getattr(api, method)(path, {"name": "x"}) if method in ("post", "patch") else getattr(api, method)(path)


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_no_sessions_token_reaches_cron_and_nobody_without_one(town, method, path):
    path = path.replace("{id}", made(town.owner)["job_id"])
    assert refused(called(town.planner.api, method, path), 403)
    assert refused(called(Api(), method, path), 401)


@pytest.mark.parametrize(("method", "path"), [call for call in CALLS if "{id}" in call[1]])
def test_a_job_of_another_project_is_not_there(town, method, path):
    foreign = CronJobFactory(project=town.stranger.session.project)
    there, nowhere = (called(town.owner, method, path.replace("{id}", job_id)) for job_id in (foreign.pk, "0" * 12))
    assert (there.status_code, there.json()) == (404, nowhere.json())
    assert town.owner.get("/api/cron/jobs").json()["jobs"] == []
    assert town.owner.get("/api/cron/runs", job_id=foreign.pk).json()["runs"] == []
    assert refused(town.owner.get("/api/cron/jobs", project="elsewhere"), 404)


def test_an_operator_names_the_project_and_an_onlooker_only_looks(town, operator, django_user_model):
    assert refused(operator.post("/api/cron/jobs", a_job()), 400, field="project")
    job = made(operator, project="demo")
    onlooker = Api(client=browser_of(staff(django_user_model, "otto", ONLOOKER)))
    assert onlooker.get(f"/api/cron/jobs/{job['job_id']}").status_code == 200
    for method, path in CALLS:
        if method != "get" or "announcements" in path:
            assert refused(called(onlooker, method, path.replace("{id}", job["job_id"])), 403)


def test_an_operators_write_needs_the_csrf_token(town, operator, django_user_model):
    careful = Client(enforce_csrf_checks=True)
    careful.force_login(django_user_model.objects.get(username="olga"))
    assert refused(Api(client=careful).post("/api/cron/jobs", a_job(project="demo")), 403, code="csrf_failed")


# --- runs ------------------------------------------------------------------------------------------------------


def test_a_run_by_hand_answers_at_once_and_a_second_waits_for_its_end(town):
    job = made(town.owner)
    run = town.owner.post(f"/api/cron/jobs/{job['job_id']}/run")
    assert (run.status_code, run.json()["status"], run.json()["trigger"]) == (202, "queued", "manual")
    assert refused(town.owner.post(f"/api/cron/jobs/{job['job_id']}/run"), 409, code="still_running")


def test_runs_are_listed_newest_first_with_slot_local_time_result_and_error(town):
    job = CronJobFactory(
        project=town.project, expression="*/30 * * * *", time_zone="Asia/Kolkata", prompt="!fail 1\nhello", runtime="scripted", now=MONDAY
    )
    play(MONDAY + 29 * MINUTE, 2)
    runs = town.owner.get("/api/cron/runs", job_id=job.pk).json()["runs"]
    assert [(run["status"], run["trigger"], run["attempt"], run["retry_of"]) for run in runs] == [
        ("success", "retry", 2, runs[1]["run_id"]), ("error", "schedule", 1, None),
    ]  # fmt: skip
    assert (runs[1]["slot"], runs[1]["local_time"]) == ("2026-06-01T12:30:00Z", "2026-06-01T18:00:00+05:30")
    assert (runs[0]["result"], "ScriptFailed" in runs[1]["error"]) == ("ok: hello", True)
    assert [run["status"] for run in town.owner.get("/api/cron/runs", status="error").json()["runs"]] == ["error"]
    first = town.owner.get("/api/cron/runs", limit=1).json()
    assert town.owner.get("/api/cron/runs", limit=1, cursor=first["next_cursor"]).json()["runs"] == runs[1:]


# --- announcements ---------------------------------------------------------------------------------------------


@pytest.fixture
def watched(town, django_capture_on_commit_callbacks):
    """Plays a job of the town and lets happen what happens after each commit."""

    def watch(prompt, *, minutes=1, expression="* * * * *", **about):
        job = CronJobFactory(project=about.pop("project", town.project), prompt=prompt, runtime="scripted", expression=expression, now=MONDAY, **about)
        with django_capture_on_commit_callbacks(execute=True):
            play(MONDAY, minutes)
        return job

    return watch


def drained(api, **query):
    return api.get("/api/cron/announcements", **query).json()["announcements"]


def test_crn_13_a_result_is_announced_once_and_the_run_says_so(town, watched):
    job = watched("The news.", name="Reporter")
    told, = drained(town.owner)
    assert (told["name"], told["text"], told["status"], told["disabled"]) == ("Reporter", "ok: The news.", "success", "")
    assert told["slot"] == "2026-06-01T12:01:00+00:00"
    assert drained(town.owner) == []
    run = CronRun.objects.get(job=job)
    assert (run.status, run.announcement) == ("success", "sent")


def test_crn_13_a_failure_is_announced_and_so_is_one_that_times_out(town, watched):
    watched("!fail 9")
    told, = drained(town.owner)
    assert (told["status"], "ScriptFailed" in told["text"]) == ("error", True)


def test_crn_13_a_job_with_nothing_to_say_and_a_silent_one_are_not_shown_as_failures(town, watched):
    nothing, silent = watched("!sleep 0"), watched("The news.", delivery_mode="silent")
    assert drained(town.owner) == []
    assert {(run.status, run.announcement) for run in CronRun.objects.filter(job__in=[nothing, silent])} == {("success", "none")}


@pytest.mark.django_db(transaction=True)
def test_crn_13_a_channel_that_refuses_leaves_the_run_a_success_and_says_that_it_failed(town, settings):
    settings.CACHES = {**settings.CACHES, "default": {"BACKEND": "django.core.cache.backends.db.DatabaseCache", "LOCATION": "no_such_table"}}
    job = CronJobFactory(project=town.project, prompt="The news.", runtime="scripted", expression="* * * * *", now=MONDAY)
    play(MONDAY, 1)
    run = CronRun.objects.get(job=job)
    assert (run.status, run.result, run.announcement) == ("success", "ok: The news.", "failed")
    assert drained(town.owner) == []


def test_that_a_job_was_switched_off_is_told_even_for_a_silent_one(town, watched):
    watched("!fail 9", minutes=7, delivery_mode="silent")
    told, = drained(town.owner)
    assert told["disabled"].startswith("It failed 6 times in a row.")


def test_the_channel_keeps_the_latest_twenty_and_losing_the_rest_loses_no_run(town, watched):
    job = watched("The news.", minutes=25)
    slots = [told["slot"] for told in drained(town.owner)]
    assert slots == [f"2026-06-01T12:{minute:02}:00+00:00" for minute in range(6, 26)]
    assert drained(town.owner) == []
    assert CronRun.objects.filter(job=job, status="success").count() == 25


def test_a_project_takes_its_own_announcements_and_an_operator_those_of_all(town, watched, operator):
    watched("Here.")
    watched("There.", project=town.stranger.session.project)
    assert [told["text"] for told in drained(town.owner)] == ["ok: Here."]
    assert refused(town.owner.get("/api/cron/announcements", project="elsewhere"), 404)
    assert [told["text"] for told in drained(operator)] == ["ok: There."]


def test_looking_at_the_head_takes_nothing(town, watched):
    watched("The news.")
    assert town.owner.client.head("/api/cron/announcements", headers=town.owner.headers()).status_code == 405
    assert len(drained(town.owner)) == 1


@pytest.mark.parametrize("moment", ["0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59+00:00"])
def test_crn_07_a_time_at_the_end_of_the_calendar_in_the_table_breaks_no_page(town, moment):
    job, other = made(town.owner, time_zone="America/New_York"), made(town.owner)
    CronJob.objects.filter(pk=job["job_id"]).update(next_run_at=datetime.fromisoformat(moment))
    listed = town.owner.get("/api/cron/jobs")
    assert listed.status_code == 200
    assert {row["job_id"] for row in listed.json()["jobs"]} == {job["job_id"], other["job_id"]}
    assert town.owner.patch(f"/api/cron/jobs/{job['job_id']}", {"expression": "1 2 * * *"}).json()["next_run_at"] < "2200"
