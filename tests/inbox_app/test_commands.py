"""manage.py inbox, as a script sees it."""

import io
import json

import pytest
from django.core.management import CommandError, call_command

from inbox_app.models import Message
from tests.factories import MessageFactory, SessionFactory, claimed, delivered, failed

pytestmark = pytest.mark.django_db


def run(*arguments):
    written = io.StringIO()
    call_command("inbox", *arguments, stdout=written)
    return [json.loads(line) for line in written.getvalue().splitlines()]


def test_list_writes_one_line_a_message_newest_first():
    first, second = MessageFactory(), MessageFactory()
    assert [line["message_id"] for line in run("list")] == [second.message_id, first.message_id]


def test_list_of_an_empty_inbox_writes_nothing():
    assert run("list") == []


def test_list_narrows_by_status_project_agent_and_limit():
    broken, waiting = failed(MessageFactory()), MessageFactory()
    notice = f"failure-{broken.pk}-0"  # the sender is told
    assert [line["message_id"] for line in run("list", "--status", "failed")] == [broken.message_id]
    assert {line["message_id"] for line in run("list", "--project", broken.project_id)} == {broken.message_id, notice}
    assert [line["message_id"] for line in run("list", "--agent", waiting.target)] == [waiting.message_id]
    assert len(run("list", "--limit", "1")) == 1


def test_list_of_a_session_that_is_not_there_is_an_error():
    with pytest.raises(CommandError, match="nothing here"):
        run("list", "--agent", "nobody")


def test_show_has_the_attempts_and_what_it_waits_for():
    message = MessageFactory()
    claimed(message)
    [shown] = run("show", message.message_id)
    assert shown["status"] == "processing"
    assert [attempt["outcome"] for attempt in shown["attempts"]] == [None]
    assert shown["waiting_for"].startswith("the end of its turn")


def test_show_needs_the_project_where_two_have_the_id():
    one, two = MessageFactory(message_id="twice"), MessageFactory(message_id="twice")
    with pytest.raises(CommandError, match="More than one project"):
        run("show", "twice")
    assert run("show", "twice", "--project", two.project_id)[0]["agent_id"] == two.target
    assert one.project_id != two.project_id


def test_show_of_a_message_that_is_not_there_is_an_error():
    with pytest.raises(CommandError, match="nothing here"):
        run("show", "unknown")


def test_retry_puts_a_failed_message_back_and_notes_who():
    message = failed(MessageFactory())
    assert run("retry", message.message_id, "--reason", "fixed the target")[0]["status"] == "pending"
    intervention = message.interventions.get()
    assert (intervention.verb, intervention.why) == ("redeliver", "fixed the target")
    assert intervention.who.endswith("at the command line")


@pytest.mark.parametrize("state", [lambda message: message, claimed, delivered])
def test_retry_of_what_has_not_failed_is_an_error(state):
    message = MessageFactory()
    state(message)
    with pytest.raises(CommandError, match="only a failed one"):
        run("retry", message.message_id)


def test_withdraw_fails_a_waiting_message_for_good():
    message = MessageFactory()
    [shown] = run("withdraw", message.message_id)
    assert (shown["status"], shown["reason"]) == ("failed", "withdrawn")


@pytest.mark.parametrize("state", [claimed, delivered, failed])
def test_withdraw_of_what_has_started_is_an_error(state):
    message = MessageFactory()
    state(message)
    with pytest.raises(CommandError, match="only a pending one"):
        run("withdraw", message.message_id)


@pytest.fixture
def of_long_ago():
    delivered(MessageFactory())
    Message.objects.update(settled_at="2020-01-01T00:00Z")


def test_purge_says_what_would_go_and_then_what_went(of_long_ago):
    [would_go] = run("purge", "--dry-run")
    assert would_go == {
        "dry_run": True, "messages": 1, "attempts": 1, "interventions": 0, "turns": 0, "markers": 0, "dedupe_keys": 0,
        "subagent_tasks": 0, "cron_runs": 0, "social_replies": 0, "task_results": 0, "taken_tasks": 0, "console_sessions": 0,
    }  # fmt: skip
    assert Message.objects.count() == 1
    assert run("purge") == [would_go | {"dry_run": False, "complete": True}]
    assert not Message.objects.exists()
    assert run("purge") == [would_go | {"dry_run": False, "complete": True, "messages": 0, "attempts": 0}]


def test_text_cannot_drive_the_terminal():
    written = io.StringIO()
    MessageFactory(content="\x1b[2J\u202e\u2028now", sender=SessionFactory(title="\x1b]52;c;eA==\x07"))
    call_command("inbox", "list", stdout=written)
    assert written.getvalue().isascii()
    assert "\x1b" not in written.getvalue()
    assert json.loads(written.getvalue())["content"] == "\x1b[2J\u202e\u2028now"
