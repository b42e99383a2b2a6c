"""The tools over REST, and the same tools inside a turn."""

import json
from datetime import timedelta

import pytest
from django.utils import timezone

from inbox_app.models import Message
from inbox_app.tools import TOOLS, TurnTools, json_schema
from sessions_app import lanes, turns
from sessions_app.lanes import LeaseLost
from sessions_app.models import Session, Turn
from suzent_site.errors import Invalid, SuzentError
from suzent_site.transactions import durable
from tests.rest import Api, claimed, delivered, refused


def test_the_tools_are_listed_as_function_calling_apis_take_them(town):
    listed = town.planner.api.get("/api/tools").json()["tools"]
    assert [tool["name"] for tool in listed] == ["agent", "agent_list", "agent_read", "agent_send", "agent_stop"]
    send = listed[3]["parameters"]
    assert (send["type"], send["required"], send["additionalProperties"]) == ("object", ["agent_id", "message"], False)
    assert send["properties"]["message"] | {"description": ""} == {"type": "string", "maxLength": 20_000, "description": ""}
    assert listed[1]["parameters"]["properties"]["status"]["enum"] == ["active", "recent"]


def test_the_list_the_urls_and_the_turn_know_the_same_tools(town):
    schema = Api().get("/api/schema").json()
    for name, tool in TOOLS.items():
        body = schema["paths"][f"/api/tools/{name}"]["post"]["requestBody"]["content"]["application/json"]["schema"]
        declared = schema["components"]["schemas"][body["$ref"].rpartition("/")[2]]
        assert set(declared["properties"]) == set(json_schema(tool.arguments())["properties"])


# --- who acts --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tool", "body"), [("agent_list", {}), ("agent_read", {"agent_id": "writer"}), ("agent_stop", {"agent_id": "writer"})])
def test_a_project_token_and_an_operator_must_name_who_acts(town, operator, tool, body):
    assert refused(town.owner.tool(tool, **body), 400, code="agent_required")
    assert refused(operator.tool(tool, **body), 400, code="agent_required")


def test_a_project_token_and_an_operator_act_as_the_session_they_name(town, operator):
    assert town.acting(town.planner).send("writer", "one").status_code == 202
    operator.acting = "planner"
    assert operator.send("writer", "two").status_code == 202
    assert set(Message.objects.values_list("sender", "kind")) == {("planner", "agent_message")}


def test_a_session_token_may_name_itself_and_nobody_else(town):
    assert Api(town.planner.api.token, acting="planner").tool("agent_list").status_code == 200
    assert refused(Api(town.planner.api.token, acting="writer").tool("agent_list"), 403)


@pytest.mark.parametrize("acting", ["stranger", "missing", "plan ner", "x" * 500, "é"])
def test_acting_as_a_foreign_or_missing_session_is_404(town, acting):
    assert refused(Api(town.owner.token, acting=acting).tool("agent_list"), 404)


def test_a_send_without_a_session_is_a_user_message(town, operator):
    assert town.owner.send("writer", "from the project", message_id="a").status_code == 202
    assert operator.send("stranger", "from Olga", message_id="b").status_code == 202
    a, b = Message.objects.order_by("message_id")
    assert (a.kind, a.sender, a.sender_label[:6], a.project_id) == ("user_message", None, "token ", "demo")
    assert (b.kind, b.sender, b.sender_label, b.project_id) == ("user_message", None, "olga", "elsewhere")


# --- agent_send ------------------------------------------------------------------------------------------------


def test_a_send_is_accepted_and_says_where_it_stands(town):
    answer = town.planner.api.send("writer", "hello", message_id="m-1")
    assert answer.status_code == 202
    assert answer.json() == {
        "message_id": "m-1", "agent_id": "writer", "status": "pending", "transport": "local", "created": True,
    }  # fmt: skip
    assert town.planner.api.send("writer", "hello", message_id="m-1").json()["created"] is False


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"message_id": ""}, "message_id"),
        ({"message_id": "a b"}, "message_id"),
        ({"message_id": "a\n"}, "message_id"),
        ({"message_id": "é"}, "message_id"),
        ({"message_id": "x" * 129}, "message_id"),
        ({"message_id": 5}, "message_id"),
        ({"message_id": None}, "message_id"),
        ({"message_id": "subagent-result-1"}, "message_id"),
        ({"message_id": "failure-1-0"}, "message_id"),
        ({"message_id": "remote-x"}, "message_id"),
        ({"message_id": "turn-x"}, "message_id"),
        ({"in_reply_to": "unknown"}, "in_reply_to"),
        ({"in_reply_to": "a b"}, "in_reply_to"),
        ({"in_reply_to": ["x"]}, "in_reply_to"),
        ({"valid_for": 0}, "valid_for"),
        ({"valid_for": -1}, "valid_for"),
        ({"valid_for": "60"}, "valid_for"),
        ({"valid_for": True}, "valid_for"),
        ({"valid_for": 1e300}, "valid_for"),
        ({"valid_for": None}, "valid_for"),
        ({"priority": "high"}, "priority"),
        ({"kind": "user_message"}, "kind"),
        ({"sender": "writer"}, "sender"),
        ({"agent_id": 5}, "agent_id"),
        ({"agent_id": ""}, "agent_id"),
        ({"agent_id": None}, "agent_id"),
    ],
    ids=str,
)
def test_a_bad_argument_is_named_and_no_row_is_made(town, more, field):
    body = {"agent_id": "writer", "message": "hello", **more}
    assert refused(town.planner.api.tool("agent_send", **body), 400, code="invalid", field=field)
    assert not Message.objects.exists()


def test_a_validity_becomes_a_time(town):
    town.planner.api.send("writer", "hello", valid_for=1.5)
    message = Message.objects.get()
    assert message.valid_until - message.accepted_at == timedelta(seconds=1.5)


def test_a_reply_names_a_message_that_its_sender_can_see(town):
    town.planner.api.send("writer", "question", message_id="q")
    town.opened("third")
    assert town.writer.api.send("planner", "answer", in_reply_to="q").status_code == 202
    assert Message.objects.get(in_reply_to="q").hops == 1
    third = town.opened("fourth")
    assert refused(third.api.send("planner", "not mine", in_reply_to="q"), 400, field="in_reply_to")
    assert refused(town.stranger.api.send("stranger2", "x", in_reply_to="q"), 404)
    assert town.owner.send("planner", "from the project", in_reply_to="q").status_code == 202


def test_a_full_mailbox_says_when_to_come_back(town, settings):
    settings.SUZENT_LANE_LIMIT = 1
    town.planner.api.send("writer", "one")
    answer = town.planner.api.send("writer", "two")
    assert refused(answer, 429, code="mailbox_full")
    assert int(answer["Retry-After"]) >= 1


def test_a_chain_that_is_too_long_is_refused_with_the_chain(town, settings):
    settings.SUZENT_MAX_HOPS = 1
    town.planner.api.send("writer", "one", message_id="one")
    town.writer.api.send("planner", "two", message_id="two", in_reply_to="one")
    answer = town.planner.api.send("writer", "three", in_reply_to="two")
    assert refused(answer, 422, code="hop_limit")
    assert [link["message_id"] for link in answer.json()["extra"]["chain"]] == ["one", "two"]


# --- agent_list and agent_read ---------------------------------------------------------------------------------


def test_recent_lists_what_the_project_allows(town):
    town.opened("dreamer", kind=Session.Kind.DREAM)
    town.planner.api.send("writer", "hello")
    answer = town.planner.api.tool("agent_list", status="recent").json()
    agents = {agent["agent_id"]: agent for agent in answer["agents"]}
    assert set(agents) == {"planner", "writer"}
    assert (agents["writer"]["unread"], agents["planner"]["unread"]) == (1, 0)
    assert {"title": "Writer", "kind": "interactive", "status": "idle", "project_id": "demo", "parent_agent_id": None}.items() <= agents["writer"].items()
    assert (answer["has_more"], answer["next_cursor"]) == (False, None)


def test_active_lists_who_is_in_a_turn(town):
    assert town.planner.api.tool("agent_list").json()["agents"] == []
    town.planner.api.send("writer", "hello")
    claimed(town.writer)
    (writer,) = town.planner.api.tool("agent_list").json()["agents"]
    assert (writer["agent_id"], writer["status"], writer["unread"]) == ("writer", "active", 1)


def test_list_pages_follow_their_cursor(town):
    seen, cursor = [], {}
    while True:
        page = town.planner.api.tool("agent_list", status="recent", limit=1, **cursor).json()
        seen += [agent["agent_id"] for agent in page["agents"]]
        if not page["has_more"]:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert seen == ["writer", "planner"]


def test_a_cursor_that_was_tampered_with_or_is_anothers_is_refused(town):
    cursor = town.planner.api.tool("agent_list", status="recent", limit=1).json()["next_cursor"]
    town.planner.api.send("writer", "1"), town.planner.api.send("writer", "2")
    others = town.planner.api.get("/api/messages", limit=1).json()["next_cursor"]
    for bad in (cursor[:-1] + ("A" if cursor[-1] != "A" else "B"), "x" + cursor, others, "", "{}", "é"):
        assert refused(town.planner.api.tool("agent_list", status="recent", cursor=bad), 400, field="cursor")


@pytest.mark.parametrize(("body", "field"), [
    ({"status": "all"}, "status"), ({"status": 1}, "status"), ({"limit": 0}, "limit"), ({"limit": 51}, "limit"),
    ({"limit": "20"}, "limit"), ({"limit": True}, "limit"), ({"limit": 2.5}, "limit"), ({"limit": None}, "limit"),
])  # fmt: skip
def test_bad_list_arguments_are_named(town, body, field):
    assert refused(town.planner.api.tool("agent_list", **body), 400, field=field)


def written(town, agent, *texts):
    """A transcript of these messages and their echoes."""
    for text in texts:
        town.owner.send(agent.id, text)
        delivered(agent)


def test_read_gives_the_transcript_in_order(town):
    written(town, town.writer, "one", "two")
    answer = town.planner.api.tool("agent_read", agent_id="writer").json()
    assert [(m["seq"], m["role"], m["text"]) for m in answer["messages"]] == [
        (1, "user", "one"), (2, "assistant", "ok: one"), (3, "user", "two"), (4, "assistant", "ok: two"),
    ]  # fmt: skip
    assert (answer["message_count"], answer["omitted_message_count"], answer["transcript_truncated"]) == (4, 0, False)
    assert (answer["agent_id"], answer["kind"], answer["status"], answer["title"]) == ("writer", "interactive", "idle", "Writer")


def test_read_neither_shows_nor_counts_hidden_entries(town):
    written(town, town.writer, "a" * 8_000, "b" * 8_000)
    town.writer.session.entries.filter(seq__in=[1, 4]).update(visible=False)
    answer = town.planner.api.tool("agent_read", agent_id="writer").json()
    assert [m["seq"] for m in answer["messages"]] == [2, 3]
    assert (answer["message_count"], answer["omitted_message_count"], answer["transcript_truncated"]) == (2, 0, False)


def test_read_shows_the_thread_of_what_a_message_made(town):
    town.planner.api.send("writer", "a question", message_id="q-1")
    delivered(town.writer)
    town.writer.api.send("planner", "an answer", message_id="a-1", in_reply_to="q-1")
    delivered(town.planner)
    asked, echoed = town.writer.api.tool("agent_read", agent_id="planner").json()["messages"]
    assert (asked["message_id"], asked["sender"], asked["in_reply_to"]) == ("a-1", "writer", "q-1")
    assert set(echoed) == {"seq", "role", "text", "created_at"}


def test_read_leaves_out_the_oldest_beyond_its_limit_and_pages_back(town):
    written(town, town.writer, "a" * 8_000, "b" * 8_000)
    newest = town.planner.api.tool("agent_read", agent_id="writer").json()
    assert [(m["seq"], len(m["text"])) for m in newest["messages"]] == [(3, 8_000), (4, 8_004)]
    assert (newest["message_count"], newest["omitted_message_count"], newest["transcript_truncated"]) == (4, 2, True)
    older = town.planner.api.tool("agent_read", agent_id="writer", before=newest["messages"][0]["seq"]).json()
    assert [m["seq"] for m in older["messages"]] == [1, 2]
    assert (older["omitted_message_count"], older["transcript_truncated"]) == (0, False)
    assert town.planner.api.tool("agent_read", agent_id="writer", before=1).json()["messages"] == []


def test_an_entry_longer_than_the_limit_is_cut_and_says_so(town):
    written(town, town.writer, "a" * 20_000)
    answer = town.planner.api.tool("agent_read", agent_id="writer").json()
    (entry,) = answer["messages"]
    assert len(entry["text"]) == 20_000
    assert entry["text"].endswith("[cut: this entry has 20004 characters]")
    assert answer["transcript_truncated"] is True


def test_lop_08_reading_changes_nothing(town):
    town.planner.api.send("writer", "one")
    delivered(town.writer)
    town.planner.api.send("writer", "two")
    before = list(Message.objects.values()), list(Session.objects.values())
    for name, arguments in (("agent_list", {"status": "recent"}), ("agent_read", {"agent_id": "writer"})):
        answers = {town.planner.api.tool(name, **arguments).content for _ in range(3)}
        assert len(answers) == 1
    town.planner.api.get("/api/messages")
    assert (list(Message.objects.values()), list(Session.objects.values())) == before


# --- agent_stop ------------------------------------------------------------------------------------------------


def test_stop_asks_the_running_turn(town):
    town.planner.api.send("writer", "hello")
    work = claimed(town.writer)
    answer = town.planner.api.tool("agent_stop", agent_id="writer")
    assert (answer.status_code, answer.json()) == (202, {"agent_id": "writer", "status": "stopping"})
    assert turns.was_asked_to_stop(work.turn.pk)


def test_there_is_nothing_to_stop_of_an_idle_session(town):
    assert refused(town.planner.api.tool("agent_stop", agent_id="writer"), 409, code="not_active")


def test_nobody_stops_themselves(town):
    assert refused(town.planner.api.tool("agent_stop", agent_id="planner"), 400, field="agent_id")


@pytest.mark.parametrize("tool", ["agent_read", "agent_stop", "agent_send"])
def test_sec_02_a_foreign_hidden_or_missing_session_is_the_very_same_404(town, tool):
    town.opened("dreamer", kind=Session.Kind.DREAM)
    more = {"message": "hello"} if tool == "agent_send" else {}
    bodies = {town.planner.api.tool(tool, agent_id=agent_id, **more).content for agent_id in ("stranger", "dreamer", "missing")}
    assert len(bodies) == 1
    assert refused(town.planner.api.tool(tool, agent_id="stranger", **more), 404)


# --- inside a turn ---------------------------------------------------------------------------------------------


@pytest.fixture
def turn(town):
    """The writer's turn that handles the message m-1."""
    town.planner.api.send("writer", "go", message_id="m-1")
    return claimed(town.writer)


def tools_of(work):
    return TurnTools(hold=work.hold, session=work.message.session, turn=work.turn, message_ids=(work.message.message_id,))


def test_a_turn_calls_the_same_tools(town, turn):
    tools = tools_of(turn)
    sent = tools.call("agent_send", agent_id="planner", message="done")
    assert sent["message_id"].startswith("turn-")
    message = Message.objects.get(message_id=sent["message_id"])
    assert (message.sender_id, message.kind, message.hops) == ("writer", "agent_message", 1)
    assert {a["agent_id"] for a in tools.call("agent_list", status="recent")["agents"]} == {"planner", "writer"}
    assert tools.call("agent_read", agent_id="planner")["messages"] == []


def test_a_turn_that_is_run_again_sends_the_same_thing_once(turn):
    def run():
        tools = tools_of(turn)
        return [
            tools.call("agent_send", agent_id="planner", message=text)["message_id"] for text in ("same", "same", "other")
        ]

    first, again = run(), run()
    assert first == again
    assert len(set(first)) == 3
    assert Message.objects.filter(sender="writer").count() == 3


def test_a_refused_send_does_not_count_as_one(town, turn, settings):
    town.owner.send("planner", "fills the mailbox")
    settings.SUZENT_LANE_LIMIT = 1
    tools = tools_of(turn)
    with pytest.raises(SuzentError):
        tools.call("agent_send", agent_id="planner", message="hello")
    settings.SUZENT_LANE_LIMIT = 10
    sent = tools.call("agent_send", agent_id="planner", message="hello")
    assert tools_of(turn).call("agent_send", agent_id="planner", message="hello") == {**sent, "created": False}


def test_a_turn_without_a_message_makes_ids_of_its_own(town):
    with_turn = Turn.objects.create(session=town.writer.session, origin="interactive", epoch=1, started_at=timezone.now())
    hold = hold_of(town.writer)
    tools = TurnTools(hold=hold, session=town.writer.session, turn=with_turn, message_ids=())
    first = tools.call("agent_send", agent_id="planner", message="hello")["message_id"]
    again = TurnTools(hold=hold, session=town.writer.session, turn=with_turn, message_ids=())
    assert again.call("agent_send", agent_id="planner", message="hello")["message_id"] == first


def hold_of(agent):
    lane = agent.session.lane_key
    with durable():
        lanes.mark_due(lane, now=timezone.now())
        (hold,) = [hold for hold in lanes.claim("me", now=timezone.now(), limit=10) if hold.key == lane]
    return hold


def test_a_turn_may_choose_its_own_id_but_not_one_of_ours(turn):
    tools = tools_of(turn)
    assert tools.call("agent_send", agent_id="planner", message="hello", message_id="mine")["message_id"] == "mine"
    with pytest.raises(Invalid):
        tools.call("agent_send", agent_id="planner", message="hello", message_id="turn-mine")


@pytest.mark.parametrize(("name", "arguments"), [
    ("agent_send", {"agent_id": "planner", "message": "late"}), ("agent_list", {}), ("agent_read", {"agent_id": "planner"}),
    ("agent_stop", {"agent_id": "planner"}),
])  # fmt: skip
def test_a_turn_that_lost_its_lane_calls_nothing(turn, name, arguments):
    tools = tools_of(turn)
    lanes.end_leases("tests", now=timezone.now())
    with pytest.raises(LeaseLost):
        tools.call(name, **arguments)
    assert not Message.objects.filter(sender="writer").exists()


def test_an_unknown_tool_is_refused_by_name(turn):
    with pytest.raises(SuzentError) as caught:
        tools_of(turn).call("agent_fly")
    assert caught.value.code == "unknown_tool"


@pytest.mark.parametrize("arguments", [{}, {"agent_id": "planner"}, {"agent_id": "writer", "message": "me"}, {"agent_id": "planner", "message": 1}])
def test_bad_arguments_are_named_in_a_turn_too(turn, arguments):
    with pytest.raises(Invalid):
        tools_of(turn).call("agent_send", **arguments)


def test_what_a_tool_answers_is_json(turn):
    json.dumps([tools_of(turn).call("agent_list", status="recent"), tools_of(turn).call("agent_read", agent_id="writer")])
