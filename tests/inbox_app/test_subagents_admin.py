"""Tasks of sub-agents in the console: what a person sees of them, and stopping one."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.html import escape

from inbox_app import retention
from inbox_app.models import SubagentTask
from sessions_app.clock import database_now
from tests.people import administrator, browser_of, onlooker
from tests.subagents import begin, finish, fresh, give, results_for

pytestmark = pytest.mark.django_db
TASKS = reverse("admin:inbox_app_subagenttask_changelist")


@pytest.fixture
def console():
    return browser_of(administrator())


def page_of(task):
    return reverse("admin:inbox_app_subagenttask_change", args=[task.pk])


def session_page(agent_id):
    return reverse("admin:sessions_app_session_change", args=[agent_id])


def text_of(response):
    assert response.status_code == 200, response
    return response.content.decode()


def test_sub_05_list_and_page_say_the_same_as_the_api(town, console):
    done, queued = give(town.planner, "one", runtime="echo"), give(town.planner, "two")
    finish(begin(done))
    listed, shown = text_of(console.get(TASKS)), text_of(console.get(page_of(done)))
    for task in (done, queued):
        assert task.child_id in listed
    assert "completed" in listed
    assert "queued" in listed
    assert "ok: one" in shown
    assert "completed" in shown
    assert "took" in shown


def test_the_list_finds_a_task_by_whole_ids_and_by_status(town, console):
    mine, other = give(town.planner, "one"), give(town.writer, "two")
    for term in (mine.task_id, "planner", mine.child_id):
        found = text_of(console.get(TASKS, {"q": term}))
        assert mine.child_id in found
        assert other.child_id not in found
    assert mine.child_id not in text_of(console.get(TASKS, {"status__exact": "failed"}))
    assert console.get(TASKS, {"q": "\x00"}).status_code == 400


def test_a_sessions_page_shows_its_parent_and_its_sub_agents(town, console):
    task = give(town.planner, "Count the spoons")
    parents, childs = text_of(console.get(session_page("planner"))), text_of(console.get(session_page(task.child_id)))
    assert "Count the spoons" in parents
    assert session_page(task.child_id) in parents
    assert page_of(task) in childs
    assert session_page("planner") in childs
    assert "given no task" in childs
    assert "given no task" in text_of(console.get(session_page("writer")))


def test_what_others_wrote_is_shown_harmless(town, console):
    evil = "<script>alert(1)</script>\u202egnp"
    task = give(town.planner, evil)
    for page in (TASKS, page_of(task), session_page("planner")):
        shown = text_of(console.get(page))
        assert "<script>alert(1)" not in shown
        assert "\u202e" not in shown
    assert escape("<script>alert(1)</script>") in text_of(console.get(page_of(task)))


def test_an_operator_stops_a_task_and_is_named(town, console):
    task = give(town.planner)
    stop = reverse("admin:inbox_app_subagenttask_stop", args=[task.pk])
    assert "Stop this task?" in text_of(console.get(stop))
    console.post(stop, {"_form_submitted": "on"})
    assert fresh(task).status == "cancelled"
    assert results_for(town.planner) == ["cancelled: stopped by operator ada"]
    console.post(TASKS, {"action": "stop_chosen", "_selected_action": [task.pk]})
    assert len(results_for(town.planner)) == 1


def test_who_may_only_look_stops_nothing(town):
    task = give(town.planner)
    browser = browser_of(onlooker())
    assert browser.get(TASKS).status_code == 403
    assert browser.post(reverse("admin:inbox_app_subagenttask_stop", args=[task.pk]), {"_form_submitted": "on"}).status_code in (302, 403)
    assert fresh(task).status == "queued"


@pytest.mark.parametrize("page", [TASKS, session_page("planner")])
def test_a_page_of_tasks_costs_the_same_for_any_number(town, console, page):
    def queries():
        console.get(page)
        with CaptureQueriesContext(connection) as asked:
            console.get(page)
        return len(asked)

    give(town.planner)
    few = queries()
    for number in range(12):
        give(town.planner, str(number))
    assert queries() == few


def test_ret_01_an_ended_task_goes_as_late_as_an_id_is_forgotten(town, settings):
    ended, running = give(town.planner, runtime="echo"), give(town.planner)
    finish(begin(ended))
    def purge(days):
        return retention.purge(now=database_now() + timedelta(days=days), rest=lambda seconds: False).gone["subagent_tasks"]

    assert purge(settings.SUZENT_DEDUPE_DAYS - 1) == 0
    assert purge(settings.SUZENT_DEDUPE_DAYS + 1) == 1
    assert list(SubagentTask.objects.values_list("task_id", flat=True)) == [running.task_id]
