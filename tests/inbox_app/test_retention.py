"""What goes when it is old, what stays, and what is answered to who sends a purged id again. RET-01, SND-03."""

import threading
from datetime import timedelta

import pytest
from django.contrib.sessions.models import Session as ConsoleSession
from django.db import connection
from django.utils import timezone
from django_q.conf import Conf
from django_q.models import OrmQ, Task

from inbox_app import dispatcher, retention, tasks, transitions
from inbox_app.deliveries import Acknowledgement, Draft, Setback
from inbox_app.errors import MessageIdConflict
from inbox_app.models import Attempt, DedupeKey, Intervention, Message
from inbox_app.retention import LARGEST, SMALLEST, Pace
from inbox_app.tools import TurnTools
from sessions_app.clock import database_now
from sessions_app.cron import actions as cron_actions
from sessions_app.cron.models import CronJob, CronRun
from sessions_app.models import DeliveryMarker, Lane, TranscriptEntry, Turn
from suzent_site.errors import NotFound
from tests.factories import CronJobFactory, MessageFactory, SessionFactory, claimed, committed, delivered, failed
from tests.rest import claimed as claimed_by
from tests.rest import delivered as delivered_to
from tests.rest import refused

pytestmark = pytest.mark.django_db
day = timedelta(days=1)
MONTH, QUARTER = 31 * day, 91 * day  # past SUZENT_RETENTION_DAYS, past SUZENT_DEDUPE_DAYS
KEPT_MODELS = (Message, Attempt, Intervention, Turn, DeliveryMarker, DedupeKey, TranscriptEntry, Lane, Task, ConsoleSession)


def go_on(_seconds):
    return False


def purge(*, later=MONTH, rest=go_on, **about):
    return retention.purge(now=database_now() + later, rest=rest, **about)


def everything():
    return {model: list(model.objects.order_by("pk").values()) for model in KEPT_MODELS}


def send_again(message, **other):
    about = {"content": message.content, "kind": Message.Kind(message.kind), "sender_id": message.sender_id, "message_id": message.message_id}
    return transitions.accept(Draft(message.project_id, message.session, **about | other), now=database_now())


def redeliver(message):
    return transitions.redeliver(message, who="olga", now=database_now())


# --- what goes -------------------------------------------------------------------------------------------------


def test_what_settled_before_the_retention_goes_with_its_attempts_interventions_and_turns():
    delivered(MessageFactory())
    redeliver(failed(MessageFactory(sender=None, sender_label="olga")))
    delivered(Message.objects.unsettled().get())
    transitions.withdraw(MessageFactory(), who="olga", by_sender=True, now=database_now())
    gone = purge().gone
    assert gone | {"attempts": 0, "turns": 0} == {
        "messages": 3, "attempts": 0, "interventions": 2, "turns": 0, "markers": 0, "dedupe_keys": 0, "subagent_tasks": 0,
        "cron_runs": 0, "social_replies": 0, "task_results": 0, "taken_tasks": 0, "console_sessions": 0,
    }
    assert gone["attempts"] == gone["turns"] == 7
    assert not Message.objects.exists() and not Attempt.objects.exists() and not Intervention.objects.exists()
    assert not Turn.objects.exists()


def test_cron_runs_that_ended_long_ago_go_and_their_job_and_what_waits_stay():
    old, waiting = CronJobFactory(), CronJobFactory(now=database_now() - MONTH)
    cron_actions.run_now(old, now=database_now())
    cron_actions.change_job(old, now=database_now(), active=False)  # which calls it off
    cron_actions.run_now(waiting, now=database_now())
    assert purge().gone["cron_runs"] == 1
    assert list(CronRun.objects.values_list("job", "status")) == [(waiting.pk, "queued")]
    assert CronJob.objects.count() == 2


def test_the_transcript_stays():
    message = delivered(MessageFactory())
    before = list(message.session.entries.values("seq", "role", "text", "parts", "message_id"))
    purge(later=QUARTER)
    assert list(message.session.entries.values("seq", "role", "text", "parts", "message_id")) == before
    assert len(before) == 2


def test_what_settled_lately_stays():
    delivered(MessageFactory())
    failed(MessageFactory())
    before = everything()
    assert not any(purge(later=29 * day).gone.values())
    assert everything() == before


def test_live_rows_are_untouched_however_old():
    """RET-01."""
    now = database_now()
    claimed(MessageFactory())
    committed(claimed(MessageFactory()))
    retried = MessageFactory()
    transitions.release(claimed(retried), Setback("boom", now + day, charged=True), now=now)
    redeliver(failed(MessageFactory(sender=None)))
    MessageFactory()
    before = everything()
    assert not any(purge(later=1000 * day).gone.values())
    assert everything() == before


def test_a_turn_stays_as_long_as_an_attempt_that_it_was_run_for():
    message = MessageFactory()
    work = claimed(message)
    transitions.release(work, Setback("boom", database_now(), charged=True), now=database_now())
    Turn.objects.update(finished_at=database_now() - QUARTER)
    delivered(message)
    assert purge(later=day).gone["turns"] == 0
    assert purge().gone["turns"] == 2


def test_results_of_queue_tasks_and_expired_console_sessions_go():
    now = timezone.now()
    for number, stopped in enumerate((now - MONTH, now)):
        Task.objects.create(id=f"{number:032}", name="t", func="f", started=stopped, stopped=stopped, success=False)
    for key, expires in (("old", now - day), ("new", now + day)):
        ConsoleSession.objects.create(session_key=key, session_data="", expire_date=expires)
    gone = purge(later=timedelta(0)).gone
    assert (gone["task_results"], gone["console_sessions"]) == (1, 1)
    assert (Task.objects.count(), ConsoleSession.objects.get().session_key) == (1, "new")


def test_a_task_whose_worker_was_killed_leaves_the_queue_and_one_that_waits_or_runs_stays():
    """q2 marks a task as taken by a lock until RETRY from then."""
    now = timezone.now()
    locks = {"waits": now - day, "runs": now + timedelta(seconds=Conf.RETRY), "killed": now + timedelta(seconds=Conf.RETRY, hours=-2)}
    for name, lock in locks.items():
        OrmQ.objects.create(key="k", payload=name, lock=lock)
    assert purge(later=timedelta(0)).gone["taken_tasks"] == 1
    assert set(OrmQ.objects.values_list("payload", flat=True)) == {"waits", "runs"}


# --- ids -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("settle", [delivered, failed])
def test_a_purged_message_sent_again_is_answered_with_its_last_status(settle):
    message = settle(MessageFactory(payload={"b": [1, "é"], "a": None}))
    purge()
    again = send_again(message, payload={"a": None, "b": [1, "é"]})
    assert (again.created, again.message.message_id, again.message.status) == (False, message.message_id, message.status)
    assert not Message.objects.filter(message_id=message.message_id).exists()


def test_snd_03_a_purged_id_with_anything_else_is_a_conflict():
    message = delivered(MessageFactory())
    other = SessionFactory(project=message.session.project)
    purge()
    for changed in ({"content": "x"}, {"kind": Message.Kind.USER_MESSAGE}, {"sender_id": other.pk}, {"sender_id": None}, {"payload": {"a": 1}}):
        with pytest.raises(MessageIdConflict):
            send_again(message, **changed)
    message.session = other
    with pytest.raises(MessageIdConflict):
        send_again(message)


def test_the_same_id_in_another_project_is_another_message():
    message = delivered(MessageFactory(message_id="k"))
    purge()
    assert MessageFactory(message_id="k").project_id != message.project_id


def test_a_retry_over_rest_is_the_same_before_and_after_purging(town):
    def send(**other):
        body = {"agent_id": "writer", "message": "hello", "message_id": "m", "in_reply_to": "q", "valid_for": 60}
        return town.planner.api.tool("agent_send", **body | other)

    town.writer.api.send("planner", "question", message_id="q")
    delivered_to(town.planner)
    assert send().status_code == 202
    delivered_to(town.writer)
    before = send().json()
    purge()
    assert before == {"message_id": "m", "agent_id": "writer", "status": "delivered", "transport": "local", "created": False}
    assert send().json() == before
    assert refused(send(message="other"), 409, code="message_id_conflict")
    assert not Message.objects.exists()


def test_a_purged_message_can_be_replied_to_by_its_two_ends_and_nobody_else(town):
    third = town.opened("third")
    town.planner.api.send("writer", "question", message_id="q")
    delivered_to(town.writer)
    purge()
    assert town.writer.api.send("planner", "answer", in_reply_to="q").status_code == 202
    assert town.planner.api.send("writer", "and", in_reply_to="q").status_code == 202
    assert town.owner.send("writer", "as the owner", in_reply_to="q").status_code == 202
    assert refused(third.api.send("writer", "me too", in_reply_to="q"), 400, field="in_reply_to")


def test_a_purged_message_is_not_there_any_more(town):
    town.planner.api.send("writer", "hello", message_id="m")
    delivered_to(town.writer)
    purge()
    for answer in (town.owner.get("/api/messages/m"), town.owner.post("/api/messages/m/retry"), town.owner.post("/api/messages/m/withdraw")):
        assert answer.content == town.owner.get("/api/messages/never").content
        assert refused(answer, 404)


def test_what_was_purged_meanwhile_can_be_neither_redelivered_nor_withdrawn():
    message = failed(MessageFactory())
    purge()
    with pytest.raises(NotFound):
        redeliver(message)
    with pytest.raises(NotFound):
        transitions.withdraw(message, who="olga", by_sender=False, now=database_now())


def test_an_id_is_free_again_when_marker_and_key_have_gone():
    message = delivered(MessageFactory())
    assert purge(later=QUARTER).gone["dedupe_keys"] == 1
    assert not DeliveryMarker.objects.exists() and not DedupeKey.objects.exists()
    assert send_again(message, content="something else").created


def test_marker_and_key_stay_until_the_dedupe_days_are_over():
    message = delivered(MessageFactory())
    purge(later=89 * day)
    assert (DeliveryMarker.objects.count(), DedupeKey.objects.count()) == (1, 1)
    assert not send_again(message).created


def test_a_marker_stays_with_its_message_so_that_no_second_turn_comes():
    work = committed(claimed(MessageFactory()))
    purge(later=1000 * day)
    assert DeliveryMarker.objects.exists()
    transitions.acknowledge([Acknowledgement(work.hold, work.message)], now=database_now())
    assert Message.objects.get().status == "delivered"


def test_a_key_outlives_its_marker():
    message = delivered(MessageFactory())
    purge()
    DeliveryMarker.objects.update(created_at=database_now() + QUARTER)  # a clock that ran ahead
    assert purge(later=QUARTER).gone["dedupe_keys"] == 0
    with pytest.raises(MessageIdConflict):
        send_again(message, content="something else")


def test_a_key_stays_while_the_turn_that_sent_its_message_can_run_again(town):
    """The message of that turn waits in a paused lane, or is still there to be redelivered."""
    town.writer.api.send("planner", "go", message_id="go")
    work = claimed_by(town.planner)
    TurnTools(
        hold=work.hold, session=town.planner.session, turn=work.turn, message_ids=("go",)
    ).call("agent_send", agent_id="writer", message="sent by the turn")
    delivered_to(town.writer)
    gone = purge(later=QUARTER).gone
    assert (gone["messages"], gone["markers"], gone["dedupe_keys"]) == (1, 1, 0)
    ended = dispatcher.run_and_commit(work, threading.Event())
    transitions.acknowledge([ended.acknowledgement], now=database_now())
    gone = purge(later=QUARTER).gone
    assert (gone["messages"], gone["dedupe_keys"]) == (1, 2)


# --- in batches ------------------------------------------------------------------------------------------------


@pytest.fixture
def history():
    """Of every kind, what is a day, two months and half a year old."""
    for age in (day, 2 * MONTH, 2 * QUARTER):
        _age_what_is_there(age)
        sender = SessionFactory()
        for number in range(3):
            delivered(MessageFactory(sender=sender, message_id=f"d-{age.days}-{number}"))
        redeliver(failed(MessageFactory(sender=sender)))
        transitions.withdraw(MessageFactory(sender=sender), who="olga", by_sender=False, now=database_now())
        claimed(MessageFactory(sender=sender))
        DeliveryMarker.objects.create(
            session=sender, source="event", key=f"telegram {age.days}", digest="", seq=1, created_at=database_now()
        )
    _age_what_is_there(day)


def _age_what_is_there(age):
    for model, columns in (
        (Message, ["settled_at", "accepted_at"]), (Turn, ["started_at", "finished_at"]), (Attempt, ["finished_at"]), (DeliveryMarker, ["created_at"]),
    ):  # fmt: skip
        for row in model.objects.all():
            for column in columns:
                if getattr(row, column) is not None:
                    setattr(row, column, getattr(row, column) - age)
            row.save(update_fields=columns)


@pytest.mark.parametrize("later", [0, 29, 31, 60, 91, 200])
def test_a_dry_run_says_what_then_goes(history, later):
    moment = database_now() + later * day
    said = retention.would_go(now=moment)
    counted = {model: model.objects.count() for model in (Message, Attempt, Intervention, Turn, DeliveryMarker)}
    purged = retention.purge(now=moment, rest=go_on)
    assert (dict(purged.gone), purged.complete) == (said, True)
    assert [counted[model] - model.objects.count() for model in counted] == [
        said[name] for name in ("messages", "attempts", "interventions", "turns", "markers")
    ]
    assert not any(retention.would_go(now=moment).values())
    assert not any(retention.purge(now=moment, rest=go_on).gone.values())


def test_a_dry_run_changes_nothing(history):
    before = everything()
    assert retention.would_go(now=database_now() + QUARTER)["messages"] > 10
    assert everything() == before


def test_a_purge_that_is_stopped_anywhere_has_whole_batches_and_the_next_one_goes_on(history):
    moment = database_now() + QUARTER
    said, gone, stops = retention.would_go(now=moment), retention.Gone(), 0
    while not (purged := retention.purge(now=moment, rest=lambda _seconds: True)).complete:
        gone.update(purged.gone)
        stops += 1
        ids = set(Message.objects.values_list("message_id", flat=True)) | set(DedupeKey.objects.values_list("message_id", flat=True))
        assert set(DeliveryMarker.objects.filter(source="message").values_list("key", flat=True)) <= ids
    assert stops >= 4  # each kind is a batch of its own
    assert {name: gone[name] for name in said} == said


def test_mail_is_claimed_between_two_batches():
    for _ in range(5):
        delivered(MessageFactory())
    _age_what_is_there(MONTH)
    passed = []

    def deliver_something(_seconds):
        passed.append(delivered(MessageFactory()).status)
        return False

    assert purge(later=timedelta(0), rest=deliver_something).gone["messages"] == 5
    assert set(passed) == {"delivered"}
    assert Message.objects.count() == len(passed)


def test_a_purge_has_a_time_limit():
    delivered(MessageFactory())
    assert not purge(give_up_at=0.0).complete
    assert purge().complete


def test_batches_become_as_large_as_they_may_and_small_where_the_database_is_slow():
    quick, slow = Pace(), Pace()
    for _ in range(20):
        quick.after(0.0001)
        slow.after(0.5)
    assert (quick.size, slow.size) == (LARGEST, SMALLEST)


def test_the_minutely_sweep_purges(history):
    before = retention.would_go(now=database_now())["messages"]
    tasks.sweep()
    assert retention.would_go(now=database_now())["messages"] < before


@pytest.mark.django_db(transaction=True)
def test_two_purges_at_once_are_one():
    for _ in range(60):
        delivered(MessageFactory())
    said = retention.would_go(now=database_now() + MONTH)
    results, start = [], threading.Barrier(2)

    def run():
        start.wait()
        try:
            results.append(purge().gone)
        finally:
            connection.close()

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {name: sum(gone[name] for gone in results) for name in said} == said
    assert DedupeKey.objects.count() == 60
