"""Section A of the cases, as far as a sender sees it. The parts that run turns are tested with the dispatcher."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection, connections
from django.utils import timezone

from inbox_app.models import Message
from sessions_app.actions import archive_session
from sessions_app.models import Session
from tests.rest import Api, claimed, delivered, refused

AT_ONCE = 25
INVISIBLE = {
    "nothing": "",
    "spaces": "   ",
    "line ends": "\n\t\r\n",
    "zero width": "\u200b",
    "byte order mark": "\ufeff",
    "joiners": "\u200d\u2060\u00ad",
    "direction marks": "\u202e\u2066",
    "wide spaces": "\u3000\u00a0\u2003",
    "control": "\x07\x1b",
    "hangul filler": "\u3164",
    "braille blank": "\u2800",
    "variation selector": "\ufe0f",
    "separators": "\u2028\u2029\u0085",
}


def test_snd_01_a_send_to_a_busy_target_is_accepted_and_its_repetition_is_the_same(town):
    town.planner.api.send("writer", "first")
    claimed(town.writer)
    answers = [town.planner.api.send("writer", "second", message_id="k") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [202] * 3
    assert [answer.json()["created"] for answer in answers] == [True, False, False]
    assert Message.objects.filter(message_id="k").count() == 1


@pytest.mark.parametrize("state", ["pending", "processing", "delivered", "failed"])
def test_snd_03_a_key_with_other_content_is_a_conflict_whatever_became_of_the_first(town, state):
    town.opened("third")
    town.planner.api.send("writer", "secret a", message_id="k")
    if state == "processing":
        claimed(town.writer)
    if state == "delivered":
        delivered(town.writer)
    if state == "failed":
        town.planner.api.post("/api/messages/k/withdraw")
    first = Message.objects.values().get(message_id="k")
    others = [
        town.planner.api.send("writer", "b", message_id="k"),
        town.planner.api.send("third", "secret a", message_id="k"),
        town.writer.api.send("planner", "secret a", message_id="k"),
        town.owner.send("writer", "secret a", message_id="k"),
    ]
    for answer in others:
        assert refused(answer, 409, code="message_id_conflict")
        assert "secret" not in answer.content.decode()
    assert Message.objects.values().get(message_id="k") == first
    assert town.planner.api.send("writer", "secret a", message_id="k").json()["status"] == state


def test_snd_03_the_same_key_in_another_project_is_another_message(town, operator):
    town.planner.api.send("writer", "a", message_id="k")
    assert operator.send("stranger", "b", message_id="k").json()["created"] is True


@pytest.mark.django_db(transaction=True)
def test_snd_04_parallel_first_uses_of_one_key_make_one_row_and_the_same_answer(town):
    start = threading.Barrier(AT_ONCE)

    def send(key):
        try:
            api = Api(town.planner.api.token)
            start.wait()
            return api.send("writer", "hello", message_id=key)
        finally:
            connections.close_all()

    with ThreadPoolExecutor(AT_ONCE) as threads:
        for key in ("k-1", "k-2", "k-3", "k-4"):
            answers = list(threads.map(send, [key] * AT_ONCE))
            assert {answer.status_code for answer in answers} == {202}
            assert {answer.json()["message_id"] for answer in answers} == {key}
            assert sum(answer.json()["created"] for answer in answers) == 1
            assert Message.objects.filter(message_id=key).count() == 1


@pytest.mark.django_db(transaction=True)
def test_snd_04_parallel_first_uses_for_different_targets_make_one_row_and_conflicts(town):
    town.opened("third")
    start = threading.Barrier(AT_ONCE)

    def send(n):
        try:
            api = Api(town.planner.api.token)
            start.wait()
            return api.send(("writer", "third")[n % 2], "hello", message_id="k")
        finally:
            connections.close_all()

    with ThreadPoolExecutor(AT_ONCE) as threads:
        answers = list(threads.map(send, range(AT_ONCE)))
    assert {answer.status_code for answer in answers} == {202, 409}
    assert Message.objects.filter(message_id="k").count() == 1


@pytest.mark.parametrize("address", [
    "nobody", "Writer", "WRITER", "writer ", " writer", "peer:abc", "stranger", "%77riter", "agent:writer", "writer\n", "ｗriter",
    "x" * 128, "../writer", "writer'--",
])  # fmt: skip
def test_snd_07_a_mistyped_address_is_404_and_makes_nothing(town, address):
    before = Session.objects.count()
    answer = town.planner.api.send(address, "hello")
    assert answer.content == town.planner.api.send("missing", "hello").content
    assert refused(answer, 404, code="not_found")
    assert (Session.objects.count(), Message.objects.count()) == (before, 0)


def test_snd_09_an_archived_session_is_gone_and_stays_gone(town):
    archive_session(town.writer.session, now=timezone.now())
    assert refused(town.planner.api.send("writer", "hello"), 410, code="target_gone")
    assert not Message.objects.exists()


def test_snd_10_titles_are_no_addresses(town):
    town.opened("w-1", title="worker")
    town.opened("w-2", title="worker")
    assert refused(town.planner.api.send("worker", "hello"), 404)
    town.planner.api.send("w-1", "hello", message_id="k")
    town.owner.patch("/api/sessions/w-1", {"title": "other"})
    assert town.planner.api.get("/api/messages/k").json()["agent_id"] == "w-1"


@pytest.mark.parametrize("message", INVISIBLE.values(), ids=INVISIBLE)
def test_snd_12_a_message_that_shows_nothing_is_refused_by_name(town, message):
    assert refused(town.planner.api.send("writer", message), 400, field="message")
    assert not Message.objects.exists()


@pytest.mark.parametrize("message", [None, 7, 1.5, True, [], ["hello"], {}, {"text": "hello"}], ids=str)
def test_snd_12_a_message_that_is_no_text_is_refused_by_name(town, message):
    assert refused(town.planner.api.send("writer", message), 400, field="message")


def test_snd_12_a_missing_message_is_refused_by_name(town):
    assert refused(town.planner.api.tool("agent_send", agent_id="writer"), 400, field="message")


def test_snd_12_nobody_writes_to_themselves(town):
    assert refused(town.planner.api.send("planner", "hello"), 400, field="agent_id")
    assert refused(town.acting(town.planner).send("planner", "hello"), 400, field="agent_id")
    for spelling in ("peer:planner", "Planner", "planner ", "agent:planner"):
        assert town.planner.api.send(spelling, "hello").status_code in (400, 404)
    assert not Message.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_snd_02_a_send_past_a_locked_database_is_an_error_without_a_row_or_a_row(town):
    if connection.vendor != "sqlite":
        pytest.skip("only SQLite has one lock for all writers")
    town.planner.api.get("/api/tools")  # its use is noted
    other = connection.copy()
    with other.cursor() as lock, connection.cursor() as cursor:
        cursor.execute("PRAGMA busy_timeout = 100")
        lock.execute("BEGIN IMMEDIATE")
        answer = town.planner.api.send("writer", "hello", message_id="k")
        lock.execute("ROLLBACK")
    other.close()
    assert refused(answer, 503, code="unavailable")
    assert not Message.objects.exists()
    assert town.planner.api.send("writer", "hello", message_id="k").status_code == 202
