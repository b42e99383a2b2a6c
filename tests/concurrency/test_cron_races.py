"""Cron between connections: however many look at once, a slot has one run and an announcement one reader."""

import threading

import pytest
from django.core.cache import cache
from django.db import connection

from inbox_app import dispatcher, transitions
from sessions_app.cron import actions, announcements, scheduler
from sessions_app.cron.models import CronJob, CronRun
from tests.factories import MessageFactory
from tests.inbox_app.cron_days import MINUTE, MONDAY, again, claim, claim_run, finish, job, play, statuses, tick

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.parametrize("slot", [1, 2])
def test_crn_09_a_hundred_ticks_at_once_make_one_run_of_each_slot(together, slot):
    made = [job("* * * * *") for _ in range(3)]
    now = MONDAY + slot * MINUTE
    answers = together(*[lambda: [tick(now) for _ in range(4)]] * 25)  # as many connections as a server spares us
    assert sum(queued for answer in answers for queued in answer) == 3
    assert [statuses(one) for one in made] == [["queued"]] * 3


def test_crn_09_thirty_slots_seen_by_two_schedulers_make_thirty_runs(together):
    made = job("* * * * *")
    for number in range(1, 31):
        now = MONDAY + number * MINUTE
        answers = together(lambda now=now: tick(now), lambda now=now: tick(now))
        assert sum(answers) == 1
        finish(claim_run(now), now)
    assert statuses(made) == ["success"] * 30


def test_crn_09_what_a_scheduler_had_read_before_it_was_stopped_is_not_fired_by_it():
    made = job("*/5 * * * *")
    stale = CronJob.objects.get(pk=made.pk)
    play(MONDAY, 6)
    assert not scheduler._take_slot(stale, now=MONDAY + 6 * MINUTE)
    assert statuses(made) == ["success"]


def test_claims_at_once_start_a_run_once(together):
    job("*/5 * * * *")
    now = MONDAY + 5 * MINUTE
    tick(now)
    found = together(*[lambda owner=owner: claim(now, owner=owner) for owner in ("one", "two", "three", "four")])
    assert sum(len(works) for works in found) == 1


def test_an_edit_and_the_end_of_a_run_at_once_lose_neither(together):
    made = job("*/5 * * * *")
    now = MONDAY + 5 * MINUTE
    tick(now)
    work = claim_run(now)
    together(lambda: finish(work, now), lambda: actions.change_job(made, now=now, prompt="New.", active=False))
    assert (again(made).prompt, again(made).active, again(made).last_status, statuses(made)) == ("New.", False, "success", ["success"])


def test_runs_by_hand_at_once_are_one(together):
    made = job()
    answers = together(*[lambda number=number: actions.run_now(made, now=MONDAY + number * MINUTE) for number in range(8)])
    assert sorted(type(answer).__name__ for answer in answers) == ["CronRun", *["StillRunning"] * 7]


def test_a_failure_and_a_switching_off_at_once_leave_no_retry(together):
    made = job("0 12 * * *", "!fail 9")
    CronJob.objects.filter(pk=made.pk).update(next_run_at=MONDAY)
    tick(MONDAY)
    work = claim_run(MONDAY)
    setback = dispatcher.raised(work, "It broke.")
    together(
        lambda: transitions.release(work, setback, now=MONDAY), lambda: actions.change_job(made, now=MONDAY, active=False)
    )
    assert set(statuses(made)) <= {"error", "skipped"}
    assert not CronRun.objects.open().exists()


def test_crn_13_two_drains_never_both_get_one(together):
    made = job("* * * * *")
    play(MONDAY, 20)
    answers = together(*[lambda: announcements.drain(None)] * 6)
    told = [one["run_id"] for answer in answers for one in answer]
    assert sorted(told) == sorted(CronRun.objects.filter(job=made).values_list("pk", flat=True))
    assert announcements.waiting(None) == []
    cache.clear()


@pytest.mark.postgresql
def test_a_run_queued_while_its_lane_is_left_is_not_forgotten(stopped_before_commit):
    made = job("*/5 * * * *")
    MessageFactory(target=made.session, sender=None, sender_label="olga", kind="user_message", now=MONDAY)
    mail, = claim(MONDAY)
    done = dispatcher.run_and_commit(mail, threading.Event()).acknowledgement
    now = MONDAY + 5 * MINUTE
    leaving = stopped_before_commit(lambda: transitions.acknowledge([done], now=now))
    ticking = threading.Thread(target=tick_apart, args=(now,))
    ticking.start()
    leaving.finish()
    ticking.join(20)
    assert claim_run(now).run.job_id == made.pk


def tick_apart(now):
    tick(now)
    connection.close()
