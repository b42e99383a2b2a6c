"""What tests of sub-agents share: tasks given over REST, and played by hand as a shift would."""

import threading
from datetime import timedelta

from inbox_app import dispatcher, results, transitions
from inbox_app.deliveries import Acknowledgement, Judged, Work
from inbox_app.judgement import Verdict
from inbox_app.models import Attempt, Message, SubagentTask
from sessions_app.clock import database_now
from tests.factories import claimed


def give(parent, description="Look around.", **options):
    """A task of this agent (see tests/rest.py), just given."""
    answer = parent.api.tool("agent", description=description, **options)
    assert answer.status_code == 201, answer.content
    return SubagentTask.objects.get(task_id=answer.json()["task_id"])


def message_of(task):
    return Message.objects.get(message_id=f"subagent-task-{task.task_id}")


def begin(task, **when):
    """The turn of the task's message."""
    return claimed(message_of(task), owner="tests", **when)


def finish(work):
    """Let the turn run, commit it and acknowledge it."""
    ended = dispatcher.run_and_commit(work, threading.Event())
    if ended.setback is not None:
        transitions.release(work, ended.setback, now=database_now())
    if ended.acknowledgement is not None:
        transitions.acknowledge([ended.acknowledgement], now=database_now())


def play(*, passes=12, now=None):
    """Run all mail that is due, again and again, as a shift would whose clock jumps over every pause."""
    for round_ in range(passes):
        at = (now or database_now()) + timedelta(minutes=round_)
        for item in transitions.claim("tests", now=at, limit=50):
            settle(item)


def settle(item):
    if isinstance(item, Work):
        finish(item)
    elif item.judgement.verdict == Verdict.FAIL:
        transitions.fail(item, now=database_now())
    else:
        acknowledge_judged(item)


def acknowledge_judged(item: Judged):
    outcome = Attempt.Outcome.STOPPED if item.judgement.verdict == Verdict.STOPPED else Attempt.Outcome.DELIVERED
    transitions.acknowledge([Acknowledgement(item.hold, item.message, outcome)], now=database_now())


def results_for(parent):
    """The contents of the results in this session's inbox, in order."""
    mail = Message.objects.filter(session=parent.session, kind=Message.Kind.SUBAGENT_RESULT)
    return list(mail.order_by("pk").values_list("content", flat=True))


def fresh(task):
    return SubagentTask.objects.get(pk=task.pk)


__all__ = ["begin", "finish", "fresh", "give", "message_of", "play", "results", "results_for", "settle"]
