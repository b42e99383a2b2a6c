"""Every index has a reader; here each reader is seen to use it, on the database that the tests run on."""

from datetime import timedelta

import pytest
from django.db import connection

from inbox_app import retention
from inbox_app.models import Attempt, DedupeKey, Message
from sessions_app import transcripts, turns
from sessions_app.admin.sessions import conversation_of
from sessions_app.clock import database_now
from sessions_app.models import DeliveryMarker, Lane, Session, TranscriptEntry, Turn
from tests.factories import ProjectFactory, SessionFactory

pytestmark = pytest.mark.django_db
SESSIONS, LANES, MESSAGES, LONG = 400, 6_000, 8_000, 3_000  # rows; enough for a planner to prefer an index
NOW = database_now


def plan_of(read):
    """The plan of the last query that ``read`` makes, with its parameters bound as in real life."""
    asked = []

    def listen(execute, sql, params, many, context):
        asked.append((sql, params))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(listen):
        read()
    explain = "EXPLAIN QUERY PLAN" if connection.vendor == "sqlite" else "EXPLAIN"
    plans = []
    with connection.cursor() as cursor:
        for sql, params in asked:
            cursor.execute(f"{explain} {sql}", params)
            plans.append("\n".join(str(line) for line in cursor.fetchall()))
    return "\n".join(plans)


@pytest.fixture
def much():
    """Many sessions with idle lanes, much settled mail, one long transcript, and a little that is unsettled."""
    now = database_now()
    project = ProjectFactory()
    first = SessionFactory(project=project, agent_id="a-0")
    about = {"project": project, "created_at": now, "updated_at": now}
    Session.objects.bulk_create([Session(agent_id=f"a-{number}", **about) for number in range(1, SESSIONS)])
    Lane.objects.bulk_create([Lane(key=f"agent:a-{number}") for number in range(1, LANES)])
    Lane.objects.filter(key__in=[f"agent:a-{number}" for number in range(5)]).update(due_at=now)
    until = now + timedelta(seconds=30)
    Lane.objects.filter(key="agent:a-9").update(lease_owner="one", lease_until=until, due_at=until)
    Message.objects.bulk_create([message(number, project=project, now=now) for number in range(MESSAGES)])
    running = [
        Turn(session_id=f"a-{number}", origin="message", epoch=1, started_at=now, finished_at=None) for number in range(3)
    ]
    past = [
        Turn(session_id=f"a-{number % SESSIONS}", origin="message", epoch=1, started_at=now, finished_at=now, state="committed")
        for number in range(LONG)
    ]
    Turn.objects.bulk_create(past + running)
    TranscriptEntry.objects.bulk_create([
        TranscriptEntry(session_id=f"a-{number % 2}", seq=number // 2 + 1, role="user", text="x", created_at=now)
        for number in range(2 * LONG)
    ])
    DeliveryMarker.objects.bulk_create([
        DeliveryMarker(session_id=f"a-{number % 20}", source="message", key=f"m-{number}", digest="", seq=1, created_at=now)
        for number in range(LONG)
    ])
    of = list(Message.objects.order_by("pk").values_list("pk", flat=True)[:LONG])
    Attempt.objects.bulk_create([
        Attempt(message_id=pk, number=1, owner="one", epoch=1, started_at=now, finished_at=now, outcome="delivered") for pk in of
    ])
    DedupeKey.objects.bulk_create([
        DedupeKey(project=project, message_id=f"p-{number}", target="a-0", transport="local", status="delivered", settled_at=now)
        for number in range(LONG)
    ])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    return first


def message(number, *, project, now):
    session = f"a-{number % SESSIONS}"
    about = {
        "project": project, "message_id": f"m-{number}", "target": session, "session_id": session, "kind": "user_message",
        "sender_id": f"a-{(number + 1) % SESSIONS}", "content": "x", "root_id": f"m-{number}", "accepted_at": now, "available_at": now,
    }  # fmt: skip
    if number < 100:
        return Message(**about, lane=f"agent:{session}", valid_until=now + timedelta(hours=number))
    if number < 140:
        return Message(**about, status="failed", reason="exhausted", settled_at=now)
    return Message(**about, status="delivered", settled_at=now)


def purge():
    """The looks that the sweep takes each minute, whether anything is old or not."""
    retention.purge(now=NOW(), rest=lambda _seconds: False)


READERS = {
    "lane_due": lambda _: list(Lane.objects.due(NOW()).order_by("due_at")[:32]),
    "lane_held": lambda _: list(Lane.objects.held_by("one")),
    "message_overdue": lambda _: list(Message.objects.overdue(NOW() + timedelta(hours=3)).order_by("valid_until")[:200]),
    "message_sent": lambda session: list(Message.objects.filter(sender=session).order_by("-pk")[:50]),
    "message_received": lambda session: list(Message.objects.filter(session=session).order_by("-pk")[:50]),
    "message_failed": lambda session: list(Message.objects.filter(project__in=[session.project]).in_status("failed").order_by("-pk")[:50]),
    "message_id_once_per_project": lambda session: Message.objects.filter(project=session.project, message_id="m-7").first(),
    "transcript_position": lambda session: turns.history(session.pk, 20),
    "delivery_marker_once": lambda session: turns.marked({(session.pk, "m-20"), ("a-3", "m-7")}),
    "turn_newest": lambda session: list(conversation_of(session.pk, before="")["turns"]),
    "turn_one_running_per_session": lambda session: turns.close_lost([session.pk, "a-77"], now=NOW()),
    "session_recent": lambda session: list(Session.objects.addressable_from(session.project).recent()[:20]),
    "attempt_numbered": lambda _: list(Attempt.objects.filter(message=Message.objects.order_by("pk").first()).order_by("number")),
    "dedupe_key_once_per_project": lambda session: DedupeKey.objects.filter(project=session.project, message_id="p-7").first(),
    "message_settled": lambda _: purge(),
    "turn_finished": lambda _: purge(),
    "delivery_marker_left": lambda _: purge(),
    "dedupe_key_settled": lambda _: purge(),
}


HEADS = {
    "heads": lambda session: Message.objects.heads([session.lane_key, "agent:a-3"]),
    "room in the mailbox": lambda session: Message.objects.filter(lane=session.lane_key).order_by()[999:1000].exists(),
}
# SQLite gives the index of a unique constraint without a condition a name of its own.
UNIQUE = {
    "message_id_once_per_project": "sqlite_autoindex_agent_inbox_messages_",
    "transcript_position": "sqlite_autoindex_sessions_app_transcriptentry_",
    "delivery_marker_once": "sqlite_autoindex_sessions_app_deliverymarker_",
    "attempt_numbered": "sqlite_autoindex_inbox_app_attempt_",
    "dedupe_key_once_per_project": "sqlite_autoindex_inbox_app_dedupekey_",
}


def known_as(index):
    return UNIQUE.get(index, index) if connection.vendor == "sqlite" else index


def test_each_reader_uses_its_index_and_finding_a_head_looks_at_no_settled_mail(much):
    plans = {index: plan_of(lambda index=index: READERS[index](much)) for index in READERS}
    assert {index: plan for index, plan in plans.items() if known_as(index) not in plan} == {}
    page = plan_of(lambda: transcripts.read(much))
    assert known_as("transcript_position") in page
    assert "transcript_hidden" in page
    heads = {name: plan_of(lambda name=name: HEADS[name](much)) for name in HEADS}
    assert {name: plan for name, plan in heads.items() if "message_head" not in plan or scans_messages(plan)} == {}


def scans_messages(plan):
    return "Seq Scan on agent_inbox" in plan or "SCAN agent_inbox" in plan
