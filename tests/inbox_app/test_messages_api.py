"""Messages over REST: read, list, withdraw, retry."""

from datetime import timedelta

import pytest
import time_machine
from django.utils import timezone

from inbox_app import transitions
from inbox_app.deliveries import Setback
from inbox_app.models import Message
from sessions_app import lanes
from sessions_app.actions import archive_session
from sessions_app.models import Turn
from tests.rest import Api, claimed, delivered, refused


@pytest.fixture
def sent(town):
    town.planner.api.send("writer", "hello", message_id="m-1")
    return Message.objects.get(message_id="m-1")


def failed(message):
    """Withdrawn by an operator, so it can be retried."""
    return transitions.withdraw(message, who="olga", by_sender=False, now=timezone.now())


def read(api, message_id="m-1"):
    answer = api.get(f"/api/messages/{message_id}")
    assert answer.status_code == 200, answer.content
    return answer.json()


def test_a_message_tells_each_stage(town, sent):
    waiting = read(town.planner.api)
    assert waiting["status"] == "pending"
    assert waiting["waiting_for"] == "the dispatcher"
    assert waiting["next_attempt_at"] == waiting["accepted_at"]
    claimed_work = claimed(town.writer)
    running = read(town.planner.api)
    assert (running["status"], running["next_attempt_at"]) == ("processing", None)
    assert running["waiting_for"].startswith("the end of its turn, which began at ")
    transitions.release(
        claimed_work,
        Setback("it broke", timezone.now() + timedelta(seconds=60), charged=True),
        now=timezone.now(),
    )
    again = read(town.planner.api)
    assert again["waiting_for"].startswith("next try at ")
    assert [(a["number"], a["outcome"], a["error"]) for a in again["attempts"]] == [(1, "retried", "it broke")]


def test_a_delivered_message_waits_for_nothing(town, sent):
    delivered(town.writer)
    message = read(town.planner.api)
    assert (message["status"], message["reason"], message["waiting_for"], message["next_attempt_at"]) == ("delivered", None, None, None)
    assert message["accepted_at"] <= message["started_at"] <= message["settled_at"]
    assert message["attempts"][0]["outcome"] == "delivered"


def test_the_message_is_shown_whole(town, sent):
    message = read(town.planner.api)
    assert set(message) == {
        "message_id", "project_id", "agent_id", "sender", "sender_label", "kind", "transport", "content", "status", "reason",
        "in_reply_to", "hops", "accepted_at", "started_at", "settled_at", "valid_until", "attempts", "next_attempt_at", "waiting_for",
    }  # fmt: skip
    assert (message["agent_id"], message["sender"], message["content"], message["in_reply_to"]) == ("writer", "planner", "hello", None)


def test_what_is_ahead_is_counted(town, sent):
    town.planner.api.send("writer", "second", message_id="m-2")
    town.planner.api.send("writer", "third", message_id="m-3")
    assert read(town.planner.api, "m-2")["waiting_for"] == "1 message ahead"
    assert read(town.planner.api, "m-3")["waiting_for"] == "2 messages ahead"


def test_a_paused_lane_and_a_busy_target_are_named(town, sent):
    lanes.pause("agent:writer", now=timezone.now())
    assert read(town.planner.api)["waiting_for"] == "lane paused by an operator"
    lanes.resume("agent:writer", now=timezone.now())
    Turn.objects.create(
        session=town.writer.session, origin=Turn.Origin.CRON, epoch=1, started_at=timezone.now().replace(hour=12, minute=3, second=10)
    )
    assert read(town.planner.api)["waiting_for"] == "target is in a turn since 12:03:10 UTC, started by cron"


def test_a_message_that_is_not_yet_due_says_when(town, sent):
    with time_machine.travel("2030-01-01T00:00:00Z", tick=False):
        Message.objects.filter(pk=sent.pk).update(available_at=timezone.now() + timedelta(seconds=90))
        assert read(town.planner.api)["waiting_for"] in ("next try at 00:01:30 UTC", "next try at 00:01:30 UTC")


def test_sender_target_project_and_operator_see_it_and_nobody_else(town, sent, operator):
    for api in (town.planner.api, town.writer.api, town.owner, operator):
        assert read(api)["message_id"] == "m-1"
    third = town.opened("third")
    answers = {third.api.get("/api/messages/m-1").content, town.stranger.api.get("/api/messages/m-1").content}
    assert answers == {town.planner.api.get("/api/messages/missing").content}


@pytest.mark.parametrize("message_id", ["missing", "x" * 500, "%00", "a%20b", "%F0%9F%98%80", "M-1"])
def test_a_missing_message_is_404(town, sent, message_id):
    assert refused(town.planner.api.get(f"/api/messages/{message_id}"), 404, code="not_found")


def test_an_operator_must_say_which_project_where_two_have_the_id(town, sent, operator):
    town.opened("helper")
    Api(town.stranger.api.token)
    operator.send("stranger", "other", message_id="m-1")
    assert refused(operator.get("/api/messages/m-1"), 409, code="ambiguous")
    assert operator.get("/api/messages/m-1", project="demo").json()["agent_id"] == "writer"
    assert operator.get("/api/messages/m-1", project="elsewhere").json()["agent_id"] == "stranger"
    assert refused(operator.get("/api/messages/m-1", project="nowhere"), 404)
    assert refused(town.owner.get("/api/messages/m-1", project="elsewhere"), 404)


@pytest.mark.parametrize("query", [{"wait": -1}, {"wait": 61}, {"wait": "x"}, {"wait": ""}, {"wait": "1.5"}, {"weight": 1}, {"project": ""}])
def test_a_bad_query_is_named(town, sent, query):
    assert refused(town.planner.api.get("/api/messages/m-1", **query), 400, field=next(iter(query)))


# --- lists -----------------------------------------------------------------------------------------------------


def listed(api, **query):
    answer = api.get("/api/messages", **query)
    assert answer.status_code == 200, answer.content
    return [message["message_id"] for message in answer.json()["messages"]]


@pytest.fixture
def mail(town):
    town.opened("third")
    town.planner.api.send("writer", "1", message_id="pw")
    town.writer.api.send("planner", "2", message_id="wp")
    town.planner.api.send("third", "3", message_id="pt")
    town.owner.send("writer", "4", message_id="uw")
    Api(town.stranger.api.token)


@pytest.mark.parametrize(("query", "found"), [
    ({}, ["pt", "wp", "pw"]),
    ({"direction": "sent"}, ["pt", "pw"]),
    ({"direction": "received"}, ["wp"]),
    ({"agent_id": "writer"}, ["wp", "pw"]),
    ({"agent_id": "writer", "direction": "sent"}, ["pw"]),
    ({"agent_id": "stranger"}, []),
    ({"status": "pending"}, ["pt", "wp", "pw"]),
    ({"status": "failed"}, []),
])  # fmt: skip
def test_a_session_lists_its_own_messages_newest_first(town, mail, query, found):
    assert listed(town.planner.api, **query) == found


@pytest.mark.parametrize(("query", "found"), [
    ({}, ["uw", "pt", "wp", "pw"]),
    ({"agent_id": "writer"}, ["uw", "wp", "pw"]),
    ({"agent_id": "writer", "direction": "received"}, ["uw", "pw"]),
    ({"agent_id": "stranger"}, []),
])  # fmt: skip
def test_a_project_lists_all_of_its_messages(town, mail, query, found):
    assert listed(town.owner, **query) == found


def test_an_operator_lists_every_project(town, mail, operator):
    operator.send("stranger", "x", message_id="os")
    assert listed(operator) == ["os", "uw", "pt", "wp", "pw"]
    assert listed(operator, project="elsewhere") == ["os"]


def test_pages_follow_their_cursor_while_new_mail_comes(town, mail):
    first = town.planner.api.get("/api/messages", limit=2).json()
    town.planner.api.send("writer", "new", message_id="new")
    second = town.planner.api.get("/api/messages", limit=2, cursor=first["next_cursor"]).json()
    assert [m["message_id"] for m in first["messages"] + second["messages"]] == ["pt", "wp", "pw"]
    assert (first["has_more"], second["has_more"], second["next_cursor"]) == (True, False, None)


@pytest.mark.parametrize("query", [{"direction": "up"}, {"status": "lost"}, {"limit": 0}, {"cursor": "1"}, {"cursor": "a.b"}, {"page": 2}])
def test_a_bad_list_query_is_named(town, query):
    assert refused(town.planner.api.get("/api/messages", **query), 400, field=next(iter(query)))


def test_a_direction_without_a_session_is_a_question(town):
    assert refused(town.owner.get("/api/messages", direction="sent"), 400, field="direction")


# --- withdraw and retry ----------------------------------------------------------------------------------------


def test_the_sender_withdraws_what_has_not_begun_and_hears_nothing_more(town, sent):
    answer = town.planner.api.post("/api/messages/m-1/withdraw", {"reason": "no longer needed"})
    assert answer.status_code == 200
    assert {"status": "failed", "reason": "withdrawn", "waiting_for": None}.items() <= answer.json().items()
    assert not Message.objects.filter(kind="delivery_failure").exists()
    assert refused(town.planner.api.post("/api/messages/m-1/withdraw"), 409, code="not_pending")


def test_what_the_project_or_an_operator_withdraws_is_told_to_the_sender(town, sent, operator):
    assert town.owner.post("/api/messages/m-1/withdraw").status_code == 200
    assert Message.objects.get(kind="delivery_failure").target == "planner"
    town.planner.api.send("writer", "x", message_id="m-2")
    assert operator.post("/api/messages/m-2/withdraw", {"reason": "by hand"}).status_code == 200
    assert Message.objects.get(message_id="m-2").interventions.get().who == "olga"


def test_a_running_message_is_not_withdrawn(town, sent):
    claimed(town.writer)
    answer = town.planner.api.post("/api/messages/m-1/withdraw")
    assert refused(answer, 409, code="not_pending")
    assert answer.json()["extra"] == {"status": "processing"}


@pytest.mark.parametrize("verb", ["withdraw", "retry"])
def test_the_target_may_not_change_it_and_others_do_not_see_it(town, sent, verb):
    assert refused(town.writer.api.post(f"/api/messages/m-1/{verb}"), 403)
    assert refused(town.stranger.api.post(f"/api/messages/m-1/{verb}"), 404)
    assert refused(town.stranger.api.post(f"/api/messages/missing/{verb}"), 404)


@pytest.mark.parametrize("verb", ["withdraw", "retry"])
@pytest.mark.parametrize(("body", "field"), [({"reason": 1}, "reason"), ({"reason": "x" * 501}, "reason"), ({"why": ""}, "why")])
def test_a_bad_reason_is_named(town, sent, verb, body, field):
    assert refused(town.planner.api.post(f"/api/messages/m-1/{verb}", body), 400, field=field)


def test_withdraw_needs_no_body_at_all(town, sent):
    client, headers = town.planner.api.client, town.planner.api.headers()
    assert client.post("/api/messages/m-1/withdraw", headers=headers, content_type="application/json").status_code == 200


def test_a_failed_message_is_retried_under_its_id(town, sent, operator):
    failed(sent)
    answer = town.planner.api.post("/api/messages/m-1/retry", {"reason": "once more"})
    assert (answer.status_code, answer.json()["status"], answer.json()["reason"]) == (202, "pending", None)
    assert refused(operator.post("/api/messages/m-1/retry"), 409, code="not_failed")
    delivered(town.writer)
    assert read(town.planner.api)["status"] == "delivered"
    assert refused(town.planner.api.post("/api/messages/m-1/retry"), 409, code="not_failed")


def test_nothing_is_retried_into_an_archived_session(town, sent):
    failed(sent)
    archive_session(town.writer.session, now=timezone.now())
    assert refused(town.planner.api.post("/api/messages/m-1/retry"), 410, code="target_gone")
