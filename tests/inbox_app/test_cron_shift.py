"""Cron runs in whole shifts: real threads, a process of its own for a suspect, the time limit."""

import threading

import pytest
from django_q.conf import Conf

from inbox_app import shift
from inbox_app.shift import run_shift
from sessions_app.clock import database_now
from sessions_app.cron import actions
from sessions_app.cron.models import CronJob
from sessions_app.models import Lane, Turn
from tests.factories import MessageFactory, ProjectFactory
from tests.inbox_app import odd_runtimes
from tests.inbox_app.cron_days import again, job, runs, statuses

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def surroundings(settings, monkeypatch):
    """What a shift changes for its whole process is put back, and its nursery ends with it."""
    settings.RUNTIMES = {**settings.RUNTIMES, **odd_runtimes.RUNTIMES}
    settings.SUZENT_ALLOW_CRASH = True
    monkeypatch.setattr(Conf, "MAX_RSS", Conf.MAX_RSS)
    monkeypatch.setattr(shift, "_nursery", None)
    shift._ready_nursery()  # before the test has threads, as in a worker
    odd_runtimes.hung.clear()
    yield
    odd_runtimes.hung.set()
    shift._nursery.close()
    for thread in threading.enumerate():
        if thread.name.startswith("turn-"):
            thread.join(10)


def run_by_hand(made):
    actions.run_now(made, now=database_now())
    run_shift()


def test_a_shift_runs_it_and_then_the_mail_of_its_session():
    made = job("0 0 1 1 *", "From the clock.", now=database_now())
    MessageFactory(target=made.session, sender=None, sender_label="olga", content="From a person.", kind="user_message")
    run_by_hand(made)
    said = list(made.session.entries.filter(role="assistant").order_by("seq").values_list("text", flat=True))
    assert said == ["ok: From the clock.", "ok: From a person."]
    assert (statuses(made), Lane.objects.get(key=made.lane_key).due_at) == (["success"], None)


def test_a_suspect_runs_in_a_process_of_its_own_and_takes_nobody_along_when_it_dies():
    made = job("0 0 1 1 *", "!crash 9", now=database_now())
    CronJob.objects.filter(pk=made.pk).update(suspect=True)
    run_by_hand(made)
    run, = runs(made)
    assert (run.status, "ended without an answer" in run.error, again(made).suspect) == ("error", True, True)
    actions.change_job(made, now=database_now(), prompt="Better now.")
    run_by_hand(made)
    assert ([run.result for run in runs(made)], again(made).suspect) == (["", "ok: Better now."], False)


def test_a_run_past_the_time_limit_is_fenced_off_and_ends_as_error(settings):
    settings.SUZENT_TURN_TIMEOUT = 0.5
    made = job("0 0 1 1 *", now=database_now(), project=ProjectFactory(runtimes=["Hanging"]), runtime="Hanging")
    run_by_hand(made)
    run, = runs(made)
    assert (run.status, "did not end within" in run.error, again(made).suspect) == ("error", True, True)
    assert Turn.objects.get().state == "failed"
