"""Cron from the slot to its end: the scheduler, a shift's claim, and what becomes of the run. Cases CRN of the field."""

import threading
from datetime import UTC, datetime, timedelta

import pytest
from django.db import IntegrityError, transaction

from inbox_app import dispatcher, transitions
from inbox_app.models import Message
from inbox_app.transitions import claim as claim_lanes
from sessions_app import actions as session_actions
from sessions_app import lanes
from sessions_app.clock import database_now
from sessions_app.cron import actions
from sessions_app.cron.models import CronJob, CronRun
from sessions_app.cron.schedule import next_slot
from sessions_app.models import Lane, Project, TranscriptEntry, Turn
from suzent_site.errors import Invalid, NotFound
from tests.factories import MessageFactory, ProjectFactory
from tests.inbox_app import odd_runtimes
from tests.inbox_app.cron_days import (
    MINUTE,
    MONDAY,
    SHIFT,
    again,
    claim,
    claim_run,
    finish,
    job,
    minutes_run,
    play,
    runs,
    statuses,
    tick,
    work,
)

pytestmark = pytest.mark.django_db


def entries(of):
    return list(TranscriptEntry.objects.filter(session=of.session_id).order_by("seq"))


def lane(of):
    return Lane.objects.get(key=of.lane_key)


# --- A run -----------------------------------------------------------------------------------------------------


def test_a_due_slot_is_run_directly_with_no_inbox_row():
    made = job("*/5 * * * *", "Look around.")
    play(MONDAY, 5)
    run, = runs(made)
    assert (run.status, run.slot, run.trigger, run.result, run.error) == ("success", MONDAY + 5 * MINUTE, "schedule", "ok: Look around.", "")
    assert not Message.objects.exists()
    assert Turn.objects.get().origin == "cron"
    assert lane(made).due_at is None


def test_the_agent_is_told_the_job_its_local_time_and_its_last_run_and_the_prompt_stays_unchanged():
    prompt = "  Good morning \u202e👩‍👩‍👧\r\n"
    made = job("30 17 * * *", prompt, name="Tea \u2066time", time_zone="Asia/Kolkata", now=MONDAY - MINUTE)
    tick(MONDAY)
    work(MONDAY)
    play(MONDAY + timedelta(days=1, minutes=-1), 1)
    first, second = [entry for entry in entries(made) if entry.role == "user"]
    assert first.text == second.text == prompt
    header = second.parts[0]
    assert (header["type"], header["kind"], header["sender_label"], header["time_zone"]) == ("provenance", "cron", "Tea \u2066time", "Asia/Kolkata")
    assert header["local_time"] == header["slot"] == "2026-06-02T17:30:00+05:30"
    assert header["last_run"] == {"status": "success", "started_at": "2026-06-01T17:30:00+05:30", "error": ""}
    assert first.parts[0]["last_run"] is None


def test_it_runs_before_any_mail_of_its_session_and_the_mail_is_delivered_afterwards():
    made = job("*/5 * * * *", "From the clock.")
    MessageFactory(target=made.session, sender=None, sender_label="olga", content="From a person.", kind="user_message", now=MONDAY)
    now = MONDAY + 5 * MINUTE
    tick(now)
    work(now)
    work(now)
    assert [entry.text for entry in entries(made) if entry.role == "user"] == ["From the clock.", "From a person."]
    assert Message.objects.get().status == "delivered"


def test_a_run_that_came_due_while_mail_was_handled_starts_when_the_lane_is_left():
    made = job()
    MessageFactory(target=made.session, sender=None, sender_label="olga", kind="user_message", now=MONDAY)
    mail, = claim(MONDAY)
    tick(MONDAY + 5 * MINUTE)
    assert statuses(made) == ["queued"]
    finish(mail, MONDAY + 6 * MINUTE)
    work(MONDAY + 6 * MINUTE)
    assert statuses(made) == ["success"]


def test_a_mail_that_waits_for_its_retry_does_not_hold_up_a_run():
    made = job()
    MessageFactory(target=made.session, sender=None, sender_label="olga", kind="user_message", content="!fail 1\nhello", now=MONDAY)
    mail, = claim(MONDAY)
    transitions.release(mail, dispatcher.Setback("no", MONDAY + timedelta(hours=1), charged=True), now=MONDAY)
    play(MONDAY, 5)
    assert statuses(made) == ["success"]
    assert lane(made).due_at == MONDAY + timedelta(hours=1)


def test_a_claim_that_finds_neither_mail_nor_a_run_clears_the_due_time():
    made = job()
    Lane.objects.filter(key=made.lane_key).update(due_at=MONDAY)
    assert claim(MONDAY) == []
    assert (lane(made).due_at, lane(made).lease_owner) == (None, None)


def test_what_a_try_sent_its_retry_does_not_send_again():
    project = job("0 0 1 1 *").session.project
    teller = session_actions.open_session(project, agent_id="teller", now=MONDAY)
    made = job("0 * * * *", f"!send {teller.agent_id} The hour has struck.\n!fail 1", project=project)
    play(MONDAY, 61)
    assert [(run.trigger, run.status) for run in runs(made)] == [("schedule", "error"), ("retry", "success")]
    assert Message.objects.filter(target="teller").count() == 1


# --- Slots, zones, clocks --------------------------------------------------------------------------------------


def test_crn_02_after_a_restart_an_edit_and_a_re_enable_the_next_run_is_the_next_slot_and_it_fires():
    made = job("0 6 * * *", now=MONDAY + timedelta(hours=5, minutes=20))
    assert again(made).next_run_at == MONDAY.replace(day=2, hour=6)
    now = MONDAY.replace(day=1, hour=20)
    actions.change_job(made, now=now, expression="30 7 * * *", time_zone="Europe/London")
    assert again(made).next_run_at == datetime(2026, 6, 2, 6, 30, tzinfo=UTC)
    actions.change_job(made, now=now, active=False)
    assert again(made).next_run_at is None
    later = now + timedelta(days=3)
    actions.change_job(made, now=later, active=True)
    assert again(made).next_run_at == next_slot("30 7 * * *", "Europe/London", after=later)
    assert tick(later) == 0
    play(again(made).next_run_at - MINUTE, 1)
    assert statuses(made) == ["success"]


def test_crn_02_a_slot_that_is_due_and_not_taken_yet_is_lost_by_no_edit_of_other_fields():
    made = job("*/5 * * * *", "Old.")
    actions.change_job(made, now=MONDAY + 5 * MINUTE, prompt="New.", name="renamed", expression="*/5 * * * *", time_zone="UTC", active=True)
    tick(MONDAY + 6 * MINUTE)
    work(MONDAY + 6 * MINUTE)
    assert [(run.slot, run.result) for run in runs(made)] == [(MONDAY + 5 * MINUTE, "ok: New.")]


def test_crn_02_a_next_run_put_into_the_past_runs_once_and_moves_on():
    made = job("0 6 * * *")
    CronJob.objects.filter(pk=made.pk).update(next_run_at=MONDAY - timedelta(days=400))
    play(MONDAY, 10)
    assert statuses(made) == ["success"]
    assert again(made).next_run_at == MONDAY.replace(day=2, hour=6)


def test_crn_02_slots_missed_in_a_downtime_run_once():
    made = job("*/5 * * * *")
    up_again = MONDAY + timedelta(days=2, minutes=2)
    tick(up_again)
    work(up_again)
    assert statuses(made) == ["success"]
    play(up_again, 10)
    assert minutes_run(made, since=up_again) == [0, 3, 8]


@pytest.mark.parametrize(("time_zone", "at"), [("America/Sao_Paulo", "2026-06-02T00:00:00+00:00"), ("Asia/Kolkata", "2026-06-01T15:30:00+00:00")])
def test_crn_03_nothing_fires_before_its_local_time(time_zone, at):
    made = job("0 21 * * *", time_zone=time_zone)
    due = datetime.fromisoformat(at)
    assert again(made).next_run_at == due
    assert tick(due - timedelta(seconds=1)) == 0
    assert tick(due) == 1


def test_a_clock_that_runs_ahead_and_is_set_back_runs_no_slot_twice_and_loses_none():
    made = job("*/5 * * * *")
    play(MONDAY + timedelta(days=30), 1)  # the slot of 12:05 is run: it had come by that clock
    assert again(made).next_run_at > MONDAY + timedelta(days=30)
    play(MONDAY, 15)
    assert [run.slot for run in runs(made)] == [MONDAY + number * 5 * MINUTE for number in (1, 2, 3)]
    assert statuses(made) == ["success"] * 3


def test_a_retry_that_waits_for_a_time_of_a_clock_set_back_is_tried_now():
    made = job("0 6 1 1 *", "!fail 1")
    CronJob.objects.filter(pk=made.pk).update(next_run_at=MONDAY)
    ahead = MONDAY + timedelta(days=30)
    tick(ahead)
    work(ahead)
    assert statuses(made) == ["error", "queued"]
    tick(MONDAY)
    work(MONDAY)
    assert statuses(made) == ["error", "success"]


def test_a_retry_queued_while_a_tick_is_under_way_keeps_its_time():
    made = job("0 12 * * *", "!fail 1")
    now = MONDAY + timedelta(days=1)
    tick(now)
    finish(claim_run(now), now + timedelta(seconds=1))
    tick(now)  # its reading of the clock is a second older than the retry
    assert (runs(made)[1].due_at, lane(made).due_at) == (now + timedelta(seconds=61),) * 2


def test_crn_07_a_schedule_that_cannot_come_switches_its_job_off_and_the_others_go_on():
    bad, odd, good = job(), job(), job()
    CronJob.objects.filter(pk=bad.pk).update(expression="0 0 30 2 *", next_run_at=MONDAY)
    CronJob.objects.filter(pk=odd.pk).update(time_zone="Mars/Olympus", next_run_at=MONDAY)
    play(MONDAY, 10)
    assert statuses(good) == ["success", "success"]
    assert not again(bad).active and "never comes" in again(bad).disabled_reason
    assert not again(odd).active and "time_zone" in again(odd).disabled_reason
    assert not runs(bad) and not runs(odd)


def test_crn_09_a_scheduler_that_slept_across_a_slot_does_not_fire_it_again():
    made = job()
    slept_through = list(CronJob.objects.due(MONDAY + 5 * MINUTE))  # what the other had read before it was stopped
    play(MONDAY, 7)
    assert len(slept_through) == 1
    assert tick(MONDAY + 7 * MINUTE) == 0
    assert statuses(made) == ["success"]


def test_crn_09_the_database_itself_refuses_a_second_run_of_a_slot():
    made = job()
    play(MONDAY, 5)
    run, = runs(made)
    with pytest.raises(IntegrityError), transaction.atomic():
        CronRun.objects.create(
            job=made, slot=run.slot, trigger="schedule", attempt=1, status="queued", due_at=MONDAY, queued_at=MONDAY
        )


# --- Ends ------------------------------------------------------------------------------------------------------


def test_crn_04_a_job_that_fails_is_retried_as_documented_then_switched_off_and_nothing_of_it_is_due():
    made = job("0 12 * * *", "!fail 99")
    play(MONDAY + timedelta(days=1, minutes=-1), 60)
    assert minutes_run(made, since=MONDAY + timedelta(days=1)) == [0, 1, 3, 7, 15, 31]
    assert statuses(made) == ["error"] * 6
    end = again(made)
    assert (end.active, end.retry_count, end.next_run_at) == (False, 6, None)
    assert end.disabled_reason.startswith("It failed 6 times in a row.") and "ScriptFailed" in end.disabled_reason
    assert lane(made).due_at is None


def test_crn_04_a_run_that_is_stopped_ends_and_is_not_tried_again():
    made = job("0 12 * * *", "!sleep 100\nnever said")
    now = MONDAY + timedelta(days=1)
    tick(now)
    running = claim_run(now)
    session_actions.stop_session(made.session, now=now)
    finish(running, now, stop=True)
    play(now, 60)
    run, = runs(made)
    assert (run.status, run.error) == ("error", "it was asked to stop")
    assert (again(made).active, again(made).retry_count) == (True, 0)
    assert Turn.objects.get().state == "stopped"


def test_crn_04_a_job_whose_session_is_archived_ends(settings):
    made = job()
    session_actions.archive_session(made.session, now=MONDAY)
    play(MONDAY, 20)
    assert statuses(made) == []
    assert (again(made).active, "archived" in again(made).disabled_reason) == (False, True)


def test_crn_04_a_run_that_was_queued_when_its_project_was_archived_is_not_run():
    made = job()
    tick(MONDAY + 5 * MINUTE)
    Project.objects.update(archived_at=MONDAY)
    work(MONDAY + 6 * MINUTE)
    assert statuses(made) == ["skipped"]
    assert lane(made).due_at is None


def test_crn_04_a_runtime_that_is_unavailable_charges_nothing_and_the_run_waits():
    now = database_now()
    made = job("0 0 1 1 *", "!unavailable 1", now=now)
    actions.run_now(made, now=now)
    work(now)
    run, = runs(made)
    assert (run.status, run.deferrals, again(made).retry_count) == ("queued", 1, 0)
    assert lane(made).due_at == run.due_at > now
    CronRun.objects.update(slot=now - timedelta(days=2))
    work(run.due_at)
    assert statuses(made) == ["error"]


def test_crn_05_an_edit_during_a_run_survives_it():
    made = job("*/5 * * * *", "Old.")
    now = MONDAY + 5 * MINUTE
    tick(now)
    running = claim_run(now)
    actions.change_job(made, now=now, prompt="New.", expression="10 12 * * *", name="Another", delivery_mode="silent")
    finish(running, now + MINUTE)
    changed = again(made)
    assert (changed.prompt, changed.name, changed.delivery_mode, changed.next_run_at) == ("New.", "Another", "silent", MONDAY + 10 * MINUTE)
    play(now + MINUTE, 10)
    assert [run.result for run in runs(made)] == ["ok: Old.", "ok: New."]


def test_crn_10_overlaps_are_recorded_as_skipped_spend_no_retry_and_the_next_free_slot_runs():
    made = job("* * * * *", "Slowly.")
    now = MONDAY
    for ran in range(5):
        now += MINUTE
        tick(now)
        running = claim_run(now)
        for _ in range(45 if ran == 2 else 2):
            now += MINUTE
            tick(now)
            assert claim(now - timedelta(seconds=31)) == []  # its shift renews the lease
            lanes.renew(SHIFT, now=now)
        finish(running, now)
    assert statuses(made).count("success") == 5
    assert statuses(made).count("skipped") == 2 * 4 + 45
    assert all("overlap: its run of 2026-06-01T" in run.error for run in runs(made) if run.status == "skipped")
    assert (again(made).active, again(made).retry_count) == (True, 0)


def test_crn_10_two_jobs_do_not_overlap_each_other():
    slow, other = job(), job("* * * * *")
    tick(MONDAY + 5 * MINUTE)
    both = {item.run.job_id: item for item in claim(MONDAY + 5 * MINUTE)}
    finish(both[other.pk], MONDAY + 5 * MINUTE)
    lanes.renew(SHIFT, now=MONDAY + 6 * MINUTE)
    tick(MONDAY + 6 * MINUTE)
    work(MONDAY + 6 * MINUTE)
    assert statuses(other) == ["success", "success"]
    assert statuses(slow) == ["running"]


def test_crn_12_after_a_success_nothing_shows_the_error_but_the_history():
    made = job("0 12 * * *", "!fail 1")
    now = play(MONDAY + timedelta(days=1, minutes=-1), 1)
    assert (again(made).last_status, again(made).retry_count) == ("error", 1)
    play(now, 2)
    clean = again(made)
    assert (clean.last_status, clean.last_error, clean.retry_count, clean.disabled_reason) == ("success", "", 0, "")
    assert statuses(made) == ["error", "success"]
    assert "ScriptFailed" in runs(made)[0].error


def test_crn_14_no_ordinary_slot_is_lost_to_a_retry_and_no_retry_comes_after_the_next_slot():
    made = job("*/5 * * * *", "!fail 99")
    play(MONDAY, 16)
    actions.change_job(made, now=MONDAY + 16 * MINUTE, prompt="It works again.")
    play(MONDAY + 16 * MINUTE, 44)
    assert minutes_run(made) == [5, 6, 8, 10, 15, 20, *range(25, 61, 5)]
    assert statuses(made) == ["error"] * 5 + ["success"] * 9
    assert [run.attempt for run in runs(made)][:7] == [1, 2, 3, 4, 5, 6, 1]


def test_crn_14_a_retry_that_is_still_waiting_when_the_next_slot_comes_gives_way_to_it():
    made = job("*/5 * * * *", "!fail 1")
    play(MONDAY, 5)
    tick(MONDAY + 10 * MINUTE)  # nobody worked in between
    work(MONDAY + 10 * MINUTE)
    assert [(run.trigger, run.status) for run in runs(made)] == [("schedule", "error"), ("retry", "skipped"), ("schedule", "success")]


def test_six_failures_in_a_row_of_a_minutely_job_switch_it_off():
    made = job("* * * * *", "!fail 99")
    play(MONDAY, 10)
    assert minutes_run(made) == [1, 2, 3, 4, 5, 6]
    actions.change_job(made, now=MONDAY + 60 * MINUTE, active=True)
    assert (again(made).retry_count, again(made).disabled_reason) == (0, "")


# --- Workers that die, hang or leave ---------------------------------------------------------------------------


def lost(made, now):
    """It runs, and its shift dies."""
    tick(now)
    work = claim_run(now)
    lanes.end_leases(SHIFT, now=now)
    return work


def test_a_run_whose_worker_died_ends_as_error_and_is_tried_again_in_a_process_of_its_own():
    made = job("0 12 * * *")
    now = MONDAY + timedelta(days=1)
    dead = lost(made, now)
    assert claim_lanes("another", now=now, limit=5) == []
    assert [(run.status, run.error) for run in runs(made)] == [("error", "the process that ran it is gone"), ("queued", "")]
    assert lane(made).due_at == now + MINUTE
    retry = claim_run(now + MINUTE)
    assert retry.alone and retry.run.key == dead.run.key
    finish(retry, now + MINUTE)
    assert (statuses(made), again(made).suspect) == (["error", "success"], False)


def test_what_a_zombie_would_commit_is_refused():
    made = job("0 12 * * *")
    now = MONDAY + timedelta(days=1)
    zombie = lost(made, now)
    claim_lanes("another", now=now, limit=5)
    ended = dispatcher.run_and_commit(zombie, threading.Event())
    assert ended.acknowledgement is None
    assert not transitions.release(zombie, dispatcher.raised(zombie, "late"), now=now)
    assert statuses(made) == ["error", "queued"]
    assert entries(made) == []


def test_a_run_lost_after_a_stop_request_is_stopped_and_not_tried_again():
    made = job("0 12 * * *")
    now = MONDAY + timedelta(days=1)
    tick(now)
    claim_run(now)
    session_actions.stop_session(made.session, now=now)
    lanes.end_leases(SHIFT, now=now)
    claim(now)
    assert statuses(made) == ["error"]
    assert runs(made)[0].error.startswith("it was asked to stop")


def test_a_graceful_stop_puts_the_run_back_uncharged():
    made = job("0 12 * * *")
    now = MONDAY + timedelta(days=1)
    tick(now)
    running = claim_run(now)
    transitions.release(running, dispatcher.drained(running), now=now)
    assert (statuses(made), again(made).retry_count) == (["queued"], 0)
    later = runs(made)[0].due_at + timedelta(seconds=1)
    finish(claim_run(max(later, now)), max(later, now))
    assert statuses(made) == ["success"]


def test_a_run_past_the_time_limit_fails_and_its_retry_gets_a_process_of_its_own():
    made = job("0 12 * * *")
    now = MONDAY + timedelta(days=1)
    tick(now)
    running = claim_run(now)
    transitions.release(running, dispatcher.timed_out(running), now=now)
    assert statuses(made) == ["error", "queued"]
    assert "did not end within" in runs(made)[0].error
    assert claim_run(now + MINUTE).alone


def test_a_run_that_the_answer_of_a_lost_acknowledgement_began_waits_again():
    made = job()
    message = MessageFactory(target=made.session, sender=None, sender_label="olga", kind="user_message", now=MONDAY)
    mail, = claim(MONDAY)
    done = dispatcher.run_and_commit(mail, threading.Event()).acknowledgement
    tick(MONDAY + 5 * MINUTE)
    going_on = dispatcher.Acknowledgement(mail.hold, done.message, go_on=True)
    begun, = transitions.acknowledge([going_on], now=MONDAY + 5 * MINUTE)
    once_more, = transitions.acknowledge([going_on], now=MONDAY + 5 * MINUTE)
    assert begun.run == once_more.run
    finish(once_more, MONDAY + 5 * MINUTE)
    assert (statuses(made), Message.objects.get(pk=message.pk).status) == (["success"], "delivered")


# --- By hand ---------------------------------------------------------------------------------------------------


def test_a_run_by_hand_is_beside_the_slots_neither_retried_nor_counted():
    made = job("0 12 * * *", "!fail 9")
    actions.run_now(made, now=MONDAY)
    work(MONDAY)
    play(MONDAY, 30)
    assert [(run.trigger, run.status) for run in runs(made)] == [("manual", "error")]
    assert (again(made).retry_count, again(made).next_run_at) == (0, MONDAY + timedelta(days=1))


def test_there_is_one_run_at_a_time_also_by_hand():
    made = job()
    actions.run_now(made, now=MONDAY)
    with pytest.raises(actions.StillRunning):
        actions.run_now(made, now=MONDAY + MINUTE)
    work(MONDAY + MINUTE)
    assert statuses(made) == ["success"]


def test_a_job_that_is_switched_off_can_be_run_by_hand_and_stays_off():
    made = job(active=False)
    actions.run_now(made, now=MONDAY)
    work(MONDAY)
    assert (statuses(made), again(made).active) == (["success"], False)


def test_switching_off_calls_off_what_waits_and_lets_what_runs_end():
    waiting, running = job(), job()
    tick(MONDAY + 5 * MINUTE)
    works = {item.run.job_id: item for item in claim(MONDAY + 5 * MINUTE)}
    transitions.release(works[waiting.pk], dispatcher.drained(works[waiting.pk]), now=MONDAY + 5 * MINUTE)
    for made in (waiting, running):
        actions.change_job(made, now=MONDAY + 6 * MINUTE, active=False)
    finish(works[running.pk], MONDAY + 6 * MINUTE)
    assert (statuses(waiting), statuses(running)) == (["skipped"], ["success"])


def test_a_deleted_job_runs_no_more_and_its_session_is_archived():
    made = job()
    play(MONDAY, 5)
    actions.delete_job(made, now=MONDAY + 6 * MINUTE)
    play(MONDAY + 6 * MINUTE, 10)
    assert statuses(made) == ["success"]
    assert again(made).session.archived_at
    with pytest.raises(NotFound):
        actions.change_job(made, now=MONDAY, active=True)


def test_a_job_has_a_session_of_kind_cron_with_its_runtime_and_model_which_an_edit_changes():
    made = job(runtime="echo", model="small", name="Reporter")
    session = again(made).session
    assert (session.agent_id, session.kind, session.runtime, session.config, session.title) == (
        f"cron-{made.pk}", "cron", "echo", {"model": "small"}, "Reporter",
    )  # fmt: skip
    changed = actions.change_job(made, now=MONDAY, runtime="scripted", model="", name="Writer").session
    assert (changed.runtime, changed.config, changed.title) == ("scripted", {}, "Writer")
    with pytest.raises(Invalid, match="runtime"):
        actions.change_job(made, now=MONDAY, runtime="llm")


@pytest.mark.parametrize(
    ("runtime", "status"), [("AnswersNone", "error"), ("SaysNothing", "error"), ("SaysParts", "error"), ("SaysUnstorable", "success")]
)
def test_txt_01_whatever_a_runtime_answers_the_run_ends(settings, runtime, status):
    settings.RUNTIMES = {**settings.RUNTIMES, **odd_runtimes.RUNTIMES}
    made = job(project=ProjectFactory(runtimes=[runtime]), runtime=runtime)
    play(MONDAY, 5)
    assert statuses(made)[0] == status


def test_txt_01_an_error_that_no_database_can_keep_is_made_visible(settings):
    settings.RUNTIMES = {**settings.RUNTIMES, **odd_runtimes.RUNTIMES}
    made = job(project=ProjectFactory(runtimes=["RaisesUnstorable"]), runtime="RaisesUnstorable")
    play(MONDAY, 5)
    assert "a\u2400b\ufffd" in runs(made)[0].error
