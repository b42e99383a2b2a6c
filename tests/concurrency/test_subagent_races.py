"""Sub-agents that are born, end and are stopped in one instant: connections let go at a barrier, or stopped before a commit."""

import threading
import time

import pytest
from django.db import connection

from inbox_app import dispatcher, subagents, transitions
from inbox_app.deliveries import Draft
from inbox_app.models import Message, SubagentTask
from inbox_app.subagents import Stopping, Wish
from sessions_app import actions
from sessions_app.clock import database_now
from sessions_app.models import Session, Turn
from tests.factories import ProjectFactory, SessionFactory, claimed
from tests.subagents import fresh, message_of

pytestmark = pytest.mark.django_db(transaction=True)
TRIES = 100


@pytest.fixture
def parent():
    return SessionFactory(project=ProjectFactory())


def spawn(parent, **about):
    return subagents.spawn(parent, Wish("Look around."), now=database_now(), **about)


def begin(task):
    """The turn of the task. What else is due is taken too and left lying: it is not to be looked at again."""
    found = transitions.claim("me", now=database_now(), limit=9)
    return next(item for item in found if item.message.session_id == task.child_id)


def results_of(task):
    return list(Message.objects.filter(kind="subagent_result", message_id=f"subagent-result-{task.task_id}").values_list("content", flat=True))


def stop(session):
    return actions.stop_session(session, now=database_now(), who="olga")


def finish(work, ended):
    [(_, ended)] = dispatcher.commit([(work, ended.commit)])
    if ended.acknowledgement is not None:
        transitions.acknowledge([ended.acknowledgement], now=database_now())


def test_sub_02_a_child_stopped_at_the_instant_it_finishes_has_one_end_and_one_result(together, parent):
    """A hundred tries, by the child's own stop and by its parent's, in the same instant as the commit."""
    tasks = [spawn(SessionFactory(project=parent.project)) for _ in range(TRIES)]
    whom = [task.child if number % 2 else task.parent for number, task in enumerate(tasks)]
    works = {item.message.session_id: item for item in transitions.claim("me", now=database_now(), limit=TRIES)}
    ended = [(works[task.child_id], dispatcher.run(works[task.child_id], threading.Event())) for task in tasks]
    start = threading.Barrier(2)

    def each(act, rows):
        for row in rows:
            start.wait(20)
            act(row)

    assert together(lambda: each(lambda pair: finish(*pair), ended), lambda: each(stop, whom)) == [None, None]
    for task in tasks:
        [told], after = results_of(task), fresh(task)
        assert told.split(":")[0] == after.status
        assert after.status in {"completed", "cancelled"}
        assert message_of(task).status == "delivered"


def test_a_queued_task_that_is_stopped_as_it_is_claimed_either_never_starts_or_ends_stopped(together, parent):
    for _ in range(20):
        task = spawn(parent)
        found, _ = together(lambda: transitions.claim("me", now=database_now(), limit=9), lambda task=task: stop(task.child))
        for work in [item for item in found if item.message.session_id == task.child_id]:
            finish(work, dispatcher.run(work, threading.Event()))
        assert fresh(task).status == "cancelled"
        assert len(results_of(task)) == 1
        assert Turn.objects.filter(session=task.child).count() == len([i for i in found if i.message.session_id == task.child_id])


def test_sub_06_a_child_that_is_born_as_its_parent_is_stopped_is_refused_or_stopped(together, parent):
    """The parent is in its turn; every child that came to be is reached."""
    mail = transitions.accept(_mail_for(parent), now=database_now()).message
    work = claimed(mail)
    for number in range(20):
        Turn.objects.filter(pk=work.turn.pk).update(stop_requested_at=None)
        born, _ = together(lambda: spawn(parent, hold=work.hold), lambda: stop(parent))
        assert isinstance(born, SubagentTask | Stopping), number
        if isinstance(born, SubagentTask):
            assert fresh(born).status == "cancelled"
            assert len(results_of(born)) == 1
    assert not SubagentTask.objects.unended().exists()


def _mail_for(parent):
    return Draft(parent.project_id, parent, "go", Message.Kind.USER_MESSAGE, sender_label="test")


@pytest.mark.postgresql
def test_a_stop_that_waits_for_a_birth_reaches_the_child(stopped_before_commit, parent):
    birth = stopped_before_commit(lambda: spawn(parent))
    stopped = []
    stopping = threading.Thread(target=lambda: stopped.append(_answer(lambda: stop(parent))))
    stopping.start()
    _wait_until_one_waits_for_a_lock()
    task = birth.finish()
    stopping.join(20)
    assert stopped == [True]
    assert fresh(task).status == "cancelled"


def _wait_until_one_waits_for_a_lock():
    give_up_at = time.monotonic() + 20
    while time.monotonic() < give_up_at:
        with connection.cursor() as cursor:
            cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'")
            if cursor.fetchone()[0]:
                return
        time.sleep(0.02)
    pytest.fail("nobody waits")


def _answer(act):
    try:
        return act()
    finally:
        connection.close()


def test_an_archived_parent_and_its_childs_result_in_one_instant(together, parent):
    """Either the result was in time and failed with the mailbox, or it was not written; the task has it all the same."""
    for _ in range(10):
        boss = SessionFactory(project=parent.project)
        task = spawn(boss)
        work = begin(task)
        ended = dispatcher.run(work, threading.Event())
        together(lambda work=work, ended=ended: finish(work, ended), lambda boss=boss: actions.archive_session(boss, now=database_now()))
        assert fresh(task).status in {"completed", "cancelled"}
        assert fresh(task).result == "ok: Look around."
        assert len(results_of(task)) <= 1
        assert Session.objects.get(pk=boss.pk).archived_at is not None


def test_one_task_id_spawned_at_once_makes_one_child(together, parent):
    made = together(*[lambda: spawn(parent, task_id="ab" * 12)] * 8)
    assert {task.pk for task in made} == {SubagentTask.objects.get().pk}
    assert Message.objects.count() == 1


def test_twenty_children_of_one_parent_that_end_at_once_are_twenty_results(together, parent):
    works = [begin(spawn(parent)) for _ in range(20)]
    ended = [dispatcher.run(work, threading.Event()) for work in works]
    together(*[lambda work=work, end=end: finish(work, end) for work, end in zip(works, ended, strict=True)])
    assert Message.objects.filter(kind="subagent_result", session=parent).count() == 20
    assert {task.status for task in SubagentTask.objects.all()} == {"completed"}
