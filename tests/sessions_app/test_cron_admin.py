"""The operators' console: cron jobs and their runs."""

from datetime import datetime

import pytest
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME

from sessions_app.cron import actions
from sessions_app.cron.models import CronJob, CronRun
from sessions_app.models import Session
from tests.factories import CronJobFactory, ProjectFactory
from tests.inbox_app import odd_runtimes
from tests.inbox_app.cron_days import MONDAY, again, job, play, statuses
from tests.people import administrator, browser_of, operator

pytestmark = pytest.mark.django_db
JOBS = "/admin/sessions_app/cronjob/"
RUNS = "/admin/sessions_app/cronrun/"
ODD = "\u202egpj\u200b<b>bold</b>"


@pytest.fixture
def browser():
    return browser_of(administrator())


def page(browser, path, **query):
    response = browser.get(path, query)
    assert response.status_code == 200, response
    return response.content.decode()


def act(browser, action, *keys, path=JOBS):
    body = {"action": action, ACTION_CHECKBOX_NAME: keys, "index": "0", "select_across": "0"}
    return said_by(browser.post(path, body, follow=True))


def said_by(response):
    return " ".join(str(said) for said in response.context["messages"])


def confirmed(browser, dialog):
    return browser.post(dialog, {"_form_submitted": "on"}, follow=True)


def errors_of(response):
    assert response.status_code == 200
    return {name: " ".join(said) for name, said in response.context["adminform"].form.errors.items()}


def typed(project=None, **changes):
    about = {
        "name": "Morning", "expression": "0 6 * * *", "time_zone": "Asia/Kolkata", "prompt": "Good morning.", "runtime": "echo",
        "model": "", "delivery_mode": "announce", "active": "on",
    }  # fmt: skip
    return {**about, **({"project": project.pk} if project else {}), **changes}


def as_typed(of, **changes):
    """The form of a job as the browser would send it back."""
    now = again(of)
    about = {
        "name": now.name, "expression": now.expression, "time_zone": now.time_zone, "prompt": now.prompt.replace("\n", "\r\n"),
        "runtime": now.session.runtime, "model": "", "delivery_mode": now.delivery_mode, **({"active": "on"} if now.active else {}),
    }  # fmt: skip
    return {**about, **changes}


@pytest.mark.django_db(transaction=True)
def test_a_job_is_made_with_its_session(browser):
    assert browser.post(f"{JOBS}add/", typed(ProjectFactory(), prompt=" Two\r\nlines. ")).status_code == 302
    made = CronJob.objects.get()
    assert (made.name, made.prompt, made.time_zone, made.active) == ("Morning", " Two\nlines. ", "Asia/Kolkata", True)
    assert Session.objects.get(kind="cron").agent_id == made.session_id


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("expression", bad) for bad in ("0 0 30 2 *", "0 0 31 4 *", "*/0 * * * *", "60 * * * *", "* * * * * *", "@reboot", "1," * 5000, "", "a\x00")),
        ("time_zone", "Mars/Olympus"), ("prompt", ""), ("prompt", "x" * 20_001), ("name", ""), ("name", "a\x00b"), ("runtime", "llm"), ("model", "x" * 201),
    ],
)  # fmt: skip
def test_crn_07_a_bad_field_is_refused_beside_it(browser, field, value):
    assert field in errors_of(browser.post(f"{JOBS}add/", typed(ProjectFactory(), **{field: value})))
    assert not CronJob.objects.exists()
    made = CronJobFactory()
    assert field in errors_of(browser.post(f"{JOBS}{made.pk}/change/", as_typed(made, **{field: value})))
    assert again(made).updated_at == made.updated_at


@pytest.mark.parametrize(("time_zone", "offset"), [("Asia/Kolkata", "+05:30"), ("America/Sao_Paulo", "-03:00")])
def test_the_next_five_run_times_are_shown_in_the_jobs_zone_before_saving(browser, time_zone, offset):
    shown = page(browser, f"{JOBS}next_runs/", expression="0 21 * * *", time_zone=time_zone)
    assert shown.count(f"21:00{offset}") == 5
    assert "Type an expression" in page(browser, f"{JOBS}add/")
    assert "never comes" in page(browser, f"{JOBS}next_runs/", expression="0 0 30 2 *", time_zone=time_zone)
    assert "time_zone" in page(browser, f"{JOBS}next_runs/", expression="0 6 * * *", time_zone="<b>Mars</b>")


@pytest.mark.parametrize(("time_zone", "local"), [("America/Sao_Paulo", "21:00:00-03:00"), ("Asia/Kolkata", "21:00:00+05:30")])
def test_crn_03_list_and_detail_show_the_instant_with_its_zone(browser, time_zone, local):
    made = CronJobFactory(expression="0 21 * * *", time_zone=time_zone)
    instant = f"{again(made).next_run_at.astimezone(datetime.fromisoformat(f'2026-01-01T{local}').tzinfo):%Y-%m-%d}T{local} ({time_zone})"
    assert instant in page(browser, JOBS)
    assert instant in page(browser, f"{JOBS}{made.pk}/change/")


def test_an_edit_that_changes_nothing_changes_nothing(browser):
    made = CronJobFactory(prompt=" Two\nlines \u202e👩‍👩‍👧 ", name=f" {ODD} ")
    before = {name: value for name, value in vars(again(made)).items() if name not in ("_state", "updated_at")}
    assert browser.post(f"{JOBS}{made.pk}/change/", as_typed(made)).status_code == 302
    assert {name: value for name, value in vars(again(made)).items() if name in before} == before


def test_crn_02_an_edit_of_expression_and_zone_moves_the_next_run(browser):
    made = CronJobFactory()
    assert browser.post(f"{JOBS}{made.pk}/change/", as_typed(made, expression="30 7 * * *", time_zone="Europe/London")).status_code == 302
    assert f"{again(made).next_run_at:%M}" == "30"
    off = as_typed(made)
    del off["active"]
    browser.post(f"{JOBS}{made.pk}/change/", off)
    assert (again(made).active, again(made).next_run_at) == (False, None)
    browser.post(f"{JOBS}{made.pk}/change/", as_typed(made, active="on"))
    assert again(made).next_run_at is not None


def test_jobs_are_switched_and_run_from_the_list_and_what_is_not_possible_is_counted(browser):
    one, other = CronJobFactory(), CronJobFactory()
    assert act(browser, "disable_chosen", one.pk) == "Switched off: 1."
    assert act(browser, "disable_chosen", one.pk, other.pk) == "Switched off: 1. Skipped: 1, not in a state that allows it (any more)."
    assert act(browser, "enable_chosen", one.pk) == "Switched on: 1."
    assert act(browser, "run_chosen", one.pk, other.pk) == "Queued: 2."
    assert act(browser, "run_chosen", one.pk) == "Queued: 0. Skipped: 1, not in a state that allows it (any more)."
    assert statuses(one) == ["queued"]


def test_a_job_is_run_and_deleted_from_its_page(browser):
    made = CronJobFactory()
    assert said_by(confirmed(browser, f"{JOBS}{made.pk}/run_now/")).startswith("It is queued")
    assert "has not ended yet" in said_by(confirmed(browser, f"{JOBS}{made.pk}/run_now/"))
    assert said_by(confirmed(browser, f"{JOBS}{made.pk}/delete_job/")) == "Deleted."
    assert made.name not in page(browser, JOBS)
    assert statuses(made) == ["skipped"]


def test_crn_12_the_page_shows_a_clean_state_after_a_success_and_the_old_error_in_the_history_only(browser):
    made = job("0 12 * * *", "!fail 1", now=MONDAY.replace(hour=11))
    play(MONDAY.replace(hour=11, minute=59), 3)
    assert again(made).last_status == "success"
    shown = page(browser, f"{JOBS}{made.pk}/change/")
    head, _, history = shown.partition('id="last-runs"')
    assert "ScriptFailed" not in head
    assert "ScriptFailed" in history
    assert "ScriptFailed" not in page(browser, JOBS)


def test_a_job_that_gave_up_says_why_and_the_first_page_says_that_one_did(browser, settings):
    settings.RUNTIMES = {**settings.RUNTIMES, **odd_runtimes.RUNTIMES}
    made = job("* * * * *", ODD, project=ProjectFactory(runtimes=["Raises"]), runtime="Raises")
    play(MONDAY, 7)
    shown = page(browser, f"{JOBS}{made.pk}/change/").partition("Switched off because")[2]
    assert "It failed 6 times in a row." in shown and "U+202E" in shown
    assert page(browser, JOBS, state="gave up").count("gave up") > 1
    figure = next(figure for figure in browser.get("/admin/").context["figures"] if "gave up" in figure.title)
    assert (figure.value, figure.alarming) == ("1", True)
    assert "No cron job has given up" not in page(browser, "/admin/")


def test_names_and_results_steer_neither_page_nor_reader(browser):
    made = job("* * * * *", f"{ODD}\u2066", name=ODD)
    play(MONDAY, 1)
    run = CronRun.objects.get()
    for path in (JOBS, f"{JOBS}{made.pk}/change/", RUNS, f"{RUNS}{run.pk}/change/"):
        shown = page(browser, path)
        assert "<b>bold</b>" not in shown
        assert "U+202E" in shown


def test_runs_can_be_read_and_nothing_can_be_typed_into_them(browser):
    job("* * * * *")
    play(MONDAY, 1)
    run = CronRun.objects.get()
    before = CronRun.objects.values().get()
    assert "success" in page(browser, RUNS)
    assert "Look around." in page(browser, f"{RUNS}{run.pk}/change/")
    assert browser.post(f"{RUNS}{run.pk}/change/", {"status": "queued"}).status_code == 403
    assert browser.get(f"{RUNS}add/").status_code == 403
    assert browser.post(f"{RUNS}{run.pk}/delete/").status_code == 403
    assert CronRun.objects.values().get() == before


def test_crn_13_the_badge_counts_what_is_announced_until_somebody_reads_it(browser, django_capture_on_commit_callbacks):
    job("* * * * *", "The news.")
    with django_capture_on_commit_callbacks(execute=True):
        play(MONDAY, 2)
    assert badge(browser) == "2"
    assert said_by(browser.get(f"{JOBS}announcements/", follow=True)).count("ok: The news.") == 2
    assert badge(browser) is None
    assert said_by(browser.get(f"{JOBS}announcements/", follow=True)) == "Nothing new has been announced."


def badge(browser):
    groups = browser.get("/admin/").context["sidebar_navigation"]
    return next(item.get("badge") for group in groups for item in group["items"] if item["title"] == "Cron jobs")


def test_an_onlooker_reads_and_can_do_nothing(db):
    made = CronJobFactory(prompt="Read me.")
    onlooker = browser_of(operator("otto", may=("view_cronjob", "view_cronrun")))
    shown = page(onlooker, f"{JOBS}{made.pk}/change/")
    assert "Read me." in shown
    assert 'name="_save"' not in shown
    assert onlooker.post(f"{JOBS}{made.pk}/change/", as_typed(made, name="mine")).status_code == 403
    assert confirmed(onlooker, f"{JOBS}{made.pk}/run_now/").status_code == 403
    assert onlooker.get(f"{JOBS}announcements/").status_code == 403
    assert again(made).name == made.name


def test_a_job_deleted_meanwhile_is_not_there_any_more(browser):
    made = CronJobFactory()
    actions.delete_job(made, now=MONDAY)
    assert browser.get(f"{JOBS}{made.pk}/change/", follow=True).status_code == 200
    assert act(browser, "enable_chosen", made.pk).startswith("Switched on: 0.") or not again(made).active
