"""Tasks given to sub-agents: what is made, how each ends, and what its parent hears of it."""

import json
import threading
from datetime import timedelta

import pytest

from inbox_app import dispatcher, profiles, transitions
from inbox_app.models import CONTENT_LIMIT, Message, SubagentTask
from inbox_app.tools import TOOLS
from sessions_app import actions, lanes
from sessions_app.clock import database_now
from sessions_app.models import Lane, Session, Turn
from suzent_site.errors import SuzentError
from tests.inbox_app import odd_runtimes
from tests.inbox_app.test_tools import tools_of
from tests.rest import Api, claimed, delivered, refused
from tests.subagents import begin, finish, fresh, give, message_of, play, results_for

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def with_odd_runtimes(settings):
    settings.RUNTIMES = {**settings.RUNTIMES, **odd_runtimes.RUNTIMES}


@pytest.fixture
def town(town):
    """All agents of the project are scripted, and so are their sub-agents."""
    town.project.runtimes = ["scripted", "echo", *odd_runtimes.RUNTIMES]
    town.project.save()
    for agent in (town.planner, town.writer):
        actions.change_session(agent.session, now=database_now(), runtime="scripted")
    return town


# --- spawn -----------------------------------------------------------------------------------------------------


def test_a_task_is_a_session_a_row_and_a_message_made_at_once(town):
    answer = town.planner.api.tool("agent", description="Look around.\nTwice.", title="Scout")
    assert answer.status_code == 201
    body = answer.json()
    assert body == {"agent_id": f"subagent-{body['task_id']}", "task_id": body["task_id"], "status": "queued", "parent_agent_id": "planner"}
    task = SubagentTask.objects.get()
    assert (task.parent_id, task.child_id, task.description) == ("planner", body["agent_id"], "Look around.\nTwice.")
    child = task.child
    assert (child.kind, child.parent_id, child.runtime, child.title) == ("subagent", "planner", "scripted", "Scout")
    message = Message.objects.get()
    assert (message.kind, message.sender_id, message.target, message.content) == ("subagent_task", "planner", child.pk, task.description)
    assert Lane.objects.get(key=child.lane_key).due_at is not None


def test_the_title_is_the_first_line_of_the_task_unless_one_is_given(town):
    assert give(town.planner, "\n  Count the spoons \nin the drawer").child.title == "Count the spoons"
    assert len(give(town.planner, "x" * 500).child.title) == 80
    assert give(town.planner, "Count again", title="  ").child.title == "Count again"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"description": ""}, "description"),
        ({"description": " \n\u200b"}, "description"),
        ({"description": 1}, "description"),
        ({"description": None}, "description"),
        ({"description": "x" * (CONTENT_LIMIT + 1)}, "description"),
        ({"description": "a\x00b"}, "description"),
        ({"title": "t" * 201}, "title"),
        ({"subagent_type": "boss"}, "subagent_type"),
        ({"subagent_type": ["explore"]}, "subagent_type"),
        ({"tools_allowed": ["agent_fly"]}, "tools_allowed"),
        ({"tools_allowed": ["agent"]}, "tools_allowed"),
        ({"tools_allowed": "agent_read"}, "tools_allowed"),
        ({"tools_allowed": [1]}, "tools_allowed"),
        ({"tools_allowed": {"agent_read": True}}, "tools_allowed"),
        ({"tools_allowed": ["agent_read"] * 101}, "tools_allowed"),
        ({"tools_denied": ["agent_fly"]}, "tools_denied"),
        ({"tools_denied": ["a\x00"]}, "tools_denied"),
        ({"tools_allowed": ["agent_read"], "tools_denied": ["agent_send"]}, "tools_denied"),
        ({"tools_allowed": [], "tools_denied": []}, "tools_denied"),
        ({"run_in_background": "false"}, "run_in_background"),
        ({"run_in_background": 0}, "run_in_background"),
        ({"run_in_background": None}, "run_in_background"),
        ({"inherit_context": "yes"}, "inherit_context"),
        ({"model_override": ""}, "model_override"),
        ({"model_override": "m" * 129}, "model_override"),
        ({"runtime": "acp"}, "runtime"),
        ({"runtime": ""}, "runtime"),
        ({"cwd": "/"}, "cwd"),
        ({"cwd": "relative"}, "cwd"),
        ({"cwd": "/" + "x" * 4000}, "cwd"),
        ({"isolation": "container"}, "isolation"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": "5"}, "timeout"),
        ({"timeout": True}, "timeout"),
        ({"timeout": 86_401}, "timeout"),
        ({"wings": 2}, "wings"),
    ],
    ids=str,
)
def test_sub_10_a_bad_option_is_refused_by_name_in_the_call_and_makes_nothing(town, options, field):
    body = {"description": "Look around.", **options}
    assert refused(town.planner.api.tool("agent", **body), 400, code="invalid", field=field)
    assert not SubagentTask.objects.exists()
    assert not Message.objects.exists()
    assert not Session.objects.filter(kind="subagent").exists()


def test_a_description_is_needed(town):
    assert refused(town.planner.api.tool("agent"), 400, field="description")


def test_a_runtime_that_the_project_does_not_allow_is_refused(town):
    town.project.runtimes = ["scripted"]
    town.project.save()
    assert refused(town.planner.api.tool("agent", description="x", runtime="echo"), 400, field="runtime")


def test_a_working_directory_lies_in_a_root_of_the_project_whatever_links_say(town, tmp_path):
    inside, outside = tmp_path / "root" / "sub", tmp_path / "secrets"
    inside.mkdir(parents=True)
    outside.mkdir()
    (tmp_path / "root" / "way-out").symlink_to(outside)
    (tmp_path / "root" / "round").symlink_to(tmp_path / "root" / "round")
    town.project.roots = [str(tmp_path / "root")]
    town.project.save()
    assert give(town.planner, cwd=f"{inside}/../sub").child.config["cwd"] == str(inside)
    for escape in ("way-out", "../secrets", "sub/../../secrets"):
        assert refused(town.planner.api.tool("agent", description="x", cwd=f"{tmp_path}/root/{escape}"), 400, field="cwd")
    assert town.planner.api.tool("agent", description="x", cwd=f"{tmp_path}/root/round").status_code in (201, 400)


def test_a_profile_brings_instructions_and_tools_and_a_list_of_its_own_goes_before_them(town, settings):
    assert set(settings.SUBAGENT_PROFILES) == {"explore", "plan", "write", "verify", "web"}
    config = give(town.planner, subagent_type="explore", model_override="small").child.config
    assert config["instructions"] == settings.SUBAGENT_PROFILES["explore"]["instructions"]
    assert (config["tools"], config["model"]) == (settings.SUBAGENT_PROFILES["explore"]["tools"], "small")
    assert give(town.planner, subagent_type="explore", tools_allowed=["web_fetch"]).child.config["tools"] == ["web_fetch"]
    assert "agent_read" not in give(town.planner, subagent_type="explore", tools_denied=["agent_read"]).child.config["tools"]
    assert "tools" not in give(town.planner).child.config


def test_a_sub_agent_uses_its_parents_model_and_runtime_unless_told_otherwise(town):
    actions.change_session(town.planner.session, now=database_now(), config={"model": "large"})
    child = give(town.planner, runtime="echo").child
    assert (child.config["model"], child.runtime) == ("large", "echo")


def test_context_is_inherited_as_a_snapshot_within_bounds(town):
    for text in ("a" * 15_000, "b" * 4_000, "the newest"):
        town.owner.send("planner", text)
        delivered(town.planner)
    child = give(town.planner, inherit_context=True).child
    entries = list(child.entries.order_by("seq"))
    assert [entry.seq for entry in entries] == list(range(1, len(entries) + 1))
    assert (entries[-2].role, entries[-2].text, entries[-1].role, entries[-1].text) == ("user", "the newest", "assistant", "ok: the newest")
    assert 4_000 < sum(len(entry.text) for entry in entries) <= 20_000
    assert entries[-1].parts == [{"type": "inherited", "agent_id": "planner", "seq": 6}]
    assert not give(town.planner).child.entries.exists()


def test_a_child_with_inherited_context_goes_on_behind_it(town):
    town.owner.send("planner", "before")
    delivered(town.planner)
    task = give(town.planner, "now", inherit_context=True)
    play()
    assert list(task.child.entries.order_by("seq").values_list("seq", "text")) == [(1, "before"), (2, "ok: before"), (3, "now"), (4, "ok: now")]


def test_a_task_counts_as_a_link_of_the_chain(town, settings):
    settings.SUZENT_MAX_HOPS = 1
    town.owner.send("planner", "!spawn one", message_id="m-0")
    delivered(town.planner)
    task = SubagentTask.objects.get()
    assert message_of(task).hops == 1
    play(passes=1)
    result = Message.objects.get(kind="subagent_result")
    assert (result.hops, result.root_id, result.caused_by) == (2, "m-0", message_of(task).message_id)
    claimed(town.planner)
    assert refused(town.planner.api.tool("agent", description="two"), 422, code="hop_limit")
    assert SubagentTask.objects.count() == 1


def test_a_parent_that_spawns_too_fast_is_told_so(town, settings):
    settings.SUZENT_SENDER_RATE = 0.1
    answers = [town.planner.api.tool("agent", description="x").status_code for _ in range(3)]
    assert 429 in answers
    assert SubagentTask.objects.count() == answers.count(201)


def test_the_agent_tool_needs_an_acting_session_and_a_project_token_names_it(town):
    assert refused(town.owner.tool("agent", description="x"), 400, code="agent_required")
    assert town.acting(town.planner).tool("agent", description="x").status_code == 201
    assert refused(town.acting(town.stranger).tool("agent", description="x"), 404)


# --- what a sub-agent may use ----------------------------------------------------------------------------------


def test_every_tool_of_ours_is_known_to_the_profiles():
    assert set(profiles.OWN_TOOLS) == set(TOOLS)


def test_a_sub_agent_has_no_sub_agents(town):
    task = give(town.planner, "!spawn deeper")
    assert refused(town.acting(task_agent(task)).tool("agent", description="deeper"), 403, code="tool_not_allowed")
    play()
    assert SubagentTask.objects.count() == 1
    assert fresh(task).result == "error: tool_not_allowed"


def task_agent(task):
    class Child:
        id = task.child_id

    return Child


@pytest.mark.parametrize(
    ("options", "has"),
    [
        ({}, ["agent_list", "agent_read", "agent_send", "agent_stop"]),
        ({"tools_allowed": ["agent_read", "web_fetch"]}, ["agent_read"]),
        ({"tools_allowed": []}, []),
        ({"tools_denied": ["agent_send", "agent"]}, ["agent_list", "agent_read", "agent_stop"]),
        ({"subagent_type": "explore"}, ["agent_list", "agent_read"]),
    ],
    ids=str,
)
def test_the_list_of_tools_shows_a_sub_agent_what_it_may_use_and_no_call_goes_past_it(town, options, has):
    task = give(town.planner, "!list recent\n!read planner\n!send writer hello\n!stop writer", **options)
    listed = town.acting(task_agent(task)).get("/api/tools").json()["tools"]
    assert [tool["name"] for tool in listed] == has
    answers = {
        "agent_list": town.acting(task_agent(task)).tool("agent_list"),
        "agent_read": town.acting(task_agent(task)).tool("agent_read", agent_id="planner"),
        "agent_send": town.acting(task_agent(task)).tool("agent_send", agent_id="writer", message="hello"),
        "agent_stop": town.acting(task_agent(task)).tool("agent_stop", agent_id="writer"),
    }
    assert [name for name, answer in answers.items() if answer.json().get("code") != "tool_not_allowed"] == has
    finish(begin(task))
    lines = fresh(task).result.split("\n")
    assert [name for name, line in zip(answers, lines, strict=True) if line != "error: tool_not_allowed"] == has


def test_a_sub_agent_may_use_nothing_that_its_parent_may_not(town):
    actions.change_session(town.planner.session, now=database_now(), config={"tools": ["agent", "agent_read"], "tools_denied": ["web_fetch"]})
    assert give(town.planner).child.config["tools"] == ["agent", "agent_read"]
    config = give(town.planner, tools_allowed=["agent_send", "agent_read", "web_fetch"]).child.config
    assert (config["tools"], config["tools_denied"]) == (["agent_read"], ["web_fetch"])


@pytest.mark.parametrize("config", [{"tools": "agent_read"}, {"tools": [1]}, {"tools_denied": {"agent_read": 1}}])
def test_tools_in_a_config_are_a_list_of_names(town, config):
    assert refused(town.owner.post("/api/sessions", {"config": config}), 400, field=f"config.{next(iter(config))}")


# --- inside a turn ---------------------------------------------------------------------------------------------


@pytest.fixture
def turn(town):
    """The planner's turn that handles the message m-1."""
    town.writer.api.send("planner", "go", message_id="m-1")
    return claimed(town.planner)


def test_a_turn_that_is_run_again_gets_its_first_children(turn):
    def run():
        tools = tools_of(turn)
        return [tools.call("agent", description=text)["task_id"] for text in ("same", "same", "other")]

    first, again = run(), run()
    assert first == again
    assert len(set(first)) == 3
    assert SubagentTask.objects.count() == Session.objects.filter(kind="subagent").count() == 3


def test_two_projects_may_use_one_message_id_and_spawn_the_same(town, turn):
    town.stranger.api.send("stranger2", "x")
    other = town.stranger
    actions.open_session(other.session.project, now=database_now(), agent_id="neighbour")
    other.api.send("neighbour", "go", message_id="m-1")
    tools_of(turn).call("agent", description="same")
    (theirs,) = [item for item in transitions.claim("tests", now=database_now(), limit=9) if item.message.target == "neighbour"]
    tools_of(theirs).call("agent", description="same")
    assert SubagentTask.objects.count() == 2


def test_a_task_that_was_purged_is_not_started_again_by_a_turn_that_is_run_again(turn):
    tools_of(turn).call("agent", description="same")
    SubagentTask.objects.all().delete()
    with pytest.raises(SuzentError) as caught:
        tools_of(turn).call("agent", description="same")
    assert caught.value.code == "task_ended"


def test_a_turn_that_lost_its_lane_spawns_nothing(turn):
    tools = tools_of(turn)
    lanes.end_leases("tests", now=database_now())
    with pytest.raises(SuzentError) as caught:
        tools.call("agent", description="late")
    assert caught.value.code == "lease_lost"
    assert not SubagentTask.objects.exists()


def test_a_turn_that_was_asked_to_stop_spawns_nothing_however_the_call_comes(town, turn):
    actions.stop_session(town.planner.session, now=database_now())
    with pytest.raises(SuzentError) as caught:
        tools_of(turn).call("agent", description="late")
    assert caught.value.code == "stopping"
    assert refused(town.planner.api.tool("agent", description="late"), 409, code="stopping")
    assert not SubagentTask.objects.exists()
    finish(turn)
    assert town.planner.api.tool("agent", description="afterwards").status_code == 201


def test_spawn_is_a_directive_of_the_scripted_runtime(town):
    town.owner.send("planner", "!spawn !say hello\\nand more")
    delivered(town.planner)
    task = SubagentTask.objects.get()
    assert task.description == "!say hello\nand more"
    told = json.loads(town.planner.session.entries.get(role="assistant").text)
    assert told == {"agent_id": task.child_id, "task_id": task.task_id, "status": "queued", "parent_agent_id": "planner"}
    play()
    assert results_for(town.planner) == ["completed: ok\nhello\nok: and more"]


# --- how a task ends -------------------------------------------------------------------------------------------


def state_and_reason(content):
    return content.split("\n")[0]


def test_a_result_arrives_once_with_the_turn_of_the_task_and_wakes_the_parent(town):
    task = give(town.planner, "Look around.")
    play()
    assert results_for(town.planner) == ["completed: ok\nok: Look around."]
    result = Message.objects.get(kind="subagent_result")
    assert (result.message_id, result.sender_id, result.in_reply_to) == (f"subagent-result-{task.task_id}", task.child_id, message_of(task).message_id)
    assert result.status == "delivered"
    header = town.planner.session.entries.get(role="user").parts[0]
    assert header["task"] == {"task_id": task.task_id, "status": "completed", "answered": False}
    assert fresh(task).status == "completed"


def test_sub_02_a_commit_that_is_repeated_tells_the_parent_once(town):
    work = begin(give(town.planner))
    ended = dispatcher.run(work, threading.Event())
    for _ in range(3):
        dispatcher.commit([(work, ended.commit)])
    lanes.end_leases("tests", now=database_now())  # it died before it could acknowledge
    play()
    assert len(results_for(town.planner)) == 1
    assert town.planner.session.entries.filter(role="user").count() == 1


def test_sub_02_a_zombies_commit_writes_no_result(town):
    task = give(town.planner)
    work = begin(task)
    late = dispatcher.run(work, threading.Event())
    lanes.end_leases("tests", now=database_now())
    play()
    dispatcher.commit([(work, late.commit)])
    assert len(results_for(town.planner)) == 1


def ending_raises(town):
    task = give(town.planner, "!fail 99")
    play()
    return task, "failed", "failed: exhausted: ScriptFailed: The script said to fail."


def ending_death(town):
    task = give(town.planner)
    begin(task)
    lanes.end_leases("tests", now=database_now())
    for minutes in range(3):
        work = begin(task, now=database_now() + timedelta(minutes=minutes))
        transitions.release(work, dispatcher.died_alone(work, "its process 7 died"), now=database_now())
    return task, "failed", "failed: worker_died: its process 7 died"


def ending_time_out(town):
    task = give(town.planner, "!sleep 60", timeout=5)
    work = begin(task)
    transitions.release(work, dispatcher.timed_out(work), now=database_now() + timedelta(seconds=6))
    return task, "timed_out", "timed_out: it did not end within 5 s of its start"


def ending_empty(town):
    task = give(town.planner, "!sleep 0")
    play(passes=1)
    return task, "completed", "completed: empty"


def ending_white_space(town):
    task = give(town.planner, "!say  \t ")
    play(passes=1)
    return task, "completed", "completed: empty"


def ending_archived(town):
    task = give(town.planner, "!sleep 60")
    work = begin(task)
    actions.archive_session(task.child, now=database_now(), who="operator olga")
    play(passes=2)
    finish_quietly(work)
    return task, "cancelled", "cancelled: archived by operator olga"


def ending_refused_tool(town):
    task = give(town.planner, "!send writer hello", tools_allowed=["agent_read"])
    play(passes=1)
    return task, "completed", "completed: ok"


def ending_stopped(town):
    task = give(town.planner, "!say one")
    work = begin(task)
    assert town.writer.api.tool("agent_stop", agent_id=task.child_id).status_code == 202
    finish(work)
    return task, "cancelled", "cancelled: stopped by writer"


def finish_quietly(work):
    ended = dispatcher.run(work, stop_set())
    if ended.commit is not None:
        dispatcher.commit([(work, ended.commit)])


def stop_set():
    stop = threading.Event()
    stop.set()
    return stop


@pytest.mark.parametrize(
    "play_it",
    [
        ending_raises, ending_death, ending_time_out, ending_empty, ending_white_space, ending_archived, ending_refused_tool,
        ending_stopped,
    ],
)  # fmt: skip
def test_sub_04_and_05_every_ending_wakes_the_parent_once_and_all_views_agree(town, play_it):
    task, status, first_line = play_it(town)
    assert [state_and_reason(content) for content in results_for(town.planner)] == [first_line]
    assert fresh(task).status == status
    play(passes=3)
    told = town.planner.session.entries.filter(role="user")
    assert [state_and_reason(entry.text) for entry in told] == [first_line]
    shown = town.planner.api.get(f"/api/subagents/{task.task_id}").json()
    (listed,) = town.planner.api.get("/api/subagents").json()["tasks"]
    assert {shown["status"], listed["status"], Message.objects.get(kind="subagent_result").payload["status"]} == {status}
    assert shown["error"] in first_line
    assert first_line.endswith(shown["error"] or first_line)


def test_sub_05_an_ended_task_never_becomes_anything_else(town):
    task = give(town.planner)
    play()
    ended = fresh(task)
    town.planner.api.tool("agent_stop", agent_id=task.child_id)
    actions.archive_session(task.child, now=database_now())
    play()
    now = fresh(task)
    assert (now.status, now.error, now.ended_at) == (ended.status, ended.error, ended.ended_at)
    assert len(results_for(town.planner)) == 1


def test_sub_09_writing_to_a_running_child_neither_loses_nor_doubles_its_result(town):
    task = give(town.planner, "the task")
    work = begin(task)
    town.planner.api.send(task.child_id, "one more thing")
    finish(work)
    play()
    assert results_for(town.planner) == ["completed: ok\nok: the task"]
    assert [entry.text for entry in task.child.entries.filter(role="assistant").order_by("seq")] == ["ok: the task", "ok: one more thing"]


@pytest.mark.parametrize("length", [5_000, 50_000, 500_000])
def test_sub_12_a_long_result_is_whole_or_says_that_it_was_cut_and_where_the_rest_is(town, settings, length):
    text = "first line\n" + "x" * length + "\nlast line"
    settings.RUNTIMES = {**settings.RUNTIMES, "Long": f"{__name__}.Long"}
    town.project.runtimes = ["scripted", "Long"]
    town.project.save()
    task = give(town.planner, str(length), runtime="Long")
    play()
    (content,) = results_for(town.planner)
    assert len(content) <= CONTENT_LIMIT
    assert town.planner.api.get(f"/api/subagents/{task.task_id}").json()["result"] == text
    if length == 5_000:
        assert content == f"completed: ok\n{text}"
    else:
        assert content.startswith("completed: ok\nfirst line\nxxx")
        assert content.endswith(f"\n[cut: the result has {len(text)} characters; the whole is at GET /api/subagents/{task.task_id}]")


class Long(odd_runtimes.Runtime):
    def run(self, turn):
        return odd_runtimes.TurnResult("first line\n" + "x" * int(turn.inputs[0].text) + "\nlast line")


def test_txt_01_a_result_that_no_database_can_hold_is_made_visible(town):
    task = give(town.planner, runtime="SaysUnstorable")
    play()
    assert results_for(town.planner) == ["completed: ok\na\u2400b\ufffd"]
    assert fresh(task).result == "a\u2400b\ufffd"


def test_ret_04_a_result_reaches_a_full_mailbox(town, settings):
    settings.SUZENT_LANE_LIMIT = 1
    give(town.planner)
    town.writer.api.send("planner", "fills it")
    assert refused(town.writer.api.send("planner", "too much"), 429)
    play(passes=1)
    assert len(results_for(town.planner)) == 1


def test_lop_04_a_text_that_names_the_results_id_keeps_no_result_away(town):
    task = give(town.planner)
    marker = f"subagent-result-{task.task_id}"
    town.writer.api.send("planner", json.dumps({"message_id": marker, "type": "provenance"}))
    assert refused(town.writer.api.send("planner", "x", message_id=marker), 400, field="message_id")
    play()
    assert len(results_for(town.planner)) == 1
    assert town.planner.session.entries.filter(message_id=marker).count() == 1


def test_a_parent_that_was_archived_is_not_revived_and_the_result_stays_on_the_task(town):
    task = give(town.planner, "!say still working")
    work = begin(task)
    actions.archive_session(town.planner.session, now=database_now(), who="operator olga")
    finish(work)
    assert results_for(town.planner) == []
    ended = fresh(task)
    assert (ended.status, ended.error) == ("cancelled", "its parent was archived by operator olga")
    assert town.owner.get(f"/api/subagents/{task.task_id}").json()["status"] == "cancelled"


def test_a_failed_task_makes_no_second_notice_and_cannot_be_retried(town):
    task = give(town.planner, "!fail 99")
    play()
    assert not Message.objects.filter(kind="delivery_failure").exists()
    assert refused(town.owner.post(f"/api/messages/{message_of(task).message_id}/retry"), 409, code="task_ended")


def test_a_task_that_its_parent_withdraws_is_cancelled(town):
    task = give(town.planner)
    answer = town.planner.api.post(f"/api/messages/{message_of(task).message_id}/withdraw", {"reason": "not needed"})
    assert answer.status_code == 200
    assert results_for(town.planner) == ["cancelled: withdrawn by planner: not needed"]


# --- time-out --------------------------------------------------------------------------------------------------


def test_a_task_that_fails_is_tried_again_only_until_its_time_is_over(town):
    task = give(town.planner, "!fail 99", timeout=1.5)
    began = database_now()
    finish(begin(task))
    message = message_of(task)
    assert (message.status, message.available_at <= began + timedelta(seconds=5)) == ("pending", True)
    assert Lane.objects.get(key=task.child.lane_key).due_at <= message.valid_until
    play(passes=2, now=began + timedelta(seconds=10))
    assert results_for(town.planner) == ["timed_out: it did not end within 1.5 s of its start"]
    assert message_of(task).reason == "timeout"


def test_a_task_whose_runtime_is_away_ends_with_its_time(town):
    task = give(town.planner, "3600", runtime="Away", timeout=30)
    began = database_now()
    finish(begin(task))
    play(passes=2, now=began + timedelta(minutes=1))
    assert [state_and_reason(content) for content in results_for(town.planner)] == ["timed_out: it did not end within 30 s of its start"]


def test_the_sweep_ends_a_task_whose_lane_nobody_may_take(town):
    task = give(town.planner, "!fail 99", timeout=5)
    finish(begin(task))
    lanes.pause(task.child.lane_key, now=database_now())
    transitions.sweep(now=database_now() + timedelta(minutes=1))
    assert fresh(task).status == "timed_out"
    assert len(results_for(town.planner)) == 1


def test_the_time_of_a_task_begins_with_its_first_try(town):
    task = give(town.planner, "waited long", timeout=5)
    lanes.pause(task.child.lane_key, now=database_now())
    transitions.sweep(now=database_now() + timedelta(hours=1))
    assert fresh(task).status == "queued"


# --- stop ------------------------------------------------------------------------------------------------------


def test_sub_11_a_queued_task_that_is_stopped_never_starts_and_says_who_stopped_it(town):
    task = give(town.planner)
    answer = town.writer.api.tool("agent_stop", agent_id=task.child_id)
    assert (answer.status_code, answer.json()["status"]) == (202, "stopping")
    assert results_for(town.planner) == ["cancelled: stopped by writer"]
    play()
    assert not Turn.objects.filter(session=task.child).exists()
    assert fresh(task).started_at is None


def test_stopping_an_idle_parent_reaches_its_children_running_and_queued(town):
    running = give(town.planner, "!fail 9")
    work = begin(running)
    queued = give(town.planner)
    assert town.writer.api.tool("agent_stop", agent_id="planner").status_code == 202
    assert fresh(queued).status == "cancelled"
    assert fresh(running).status == "running"
    finish(work)
    assert fresh(running).status == "cancelled"
    assert results_for(town.planner) == ["cancelled: its parent was stopped by writer"] * 2
    assert refused(town.writer.api.tool("agent_stop", agent_id="planner"), 409, code="not_active")


def test_a_task_that_waits_for_its_next_try_can_be_stopped(town):
    task = give(town.planner, "!fail 1")
    finish(begin(task))
    assert fresh(task).status == "running"
    assert town.writer.api.tool("agent_stop", agent_id=task.child_id).status_code == 202
    assert results_for(town.planner) == ["cancelled: stopped by writer"]


def test_a_stopped_turn_keeps_what_it_had(town):
    task = give(town.planner, "unheard")
    work = begin(task)
    ended = dispatcher.run(work, threading.Event())
    town.writer.api.tool("agent_stop", agent_id=task.child_id)
    dispatcher.commit([(work, ended.commit)])
    assert results_for(town.planner) == ["cancelled: stopped by writer\nok: unheard"]
    assert fresh(task).result == "ok: unheard"


@pytest.mark.parametrize("how", ["lost", "released"])
def test_a_stopped_turn_that_never_commits_still_ends_its_task(town, how):
    task = give(town.planner)
    work = begin(task)
    town.writer.api.tool("agent_stop", agent_id=task.child_id)
    if how == "lost":
        lanes.end_leases("tests", now=database_now())
        play(passes=2)
    else:
        transitions.release(work, dispatcher.drained(work), now=database_now())
    assert fresh(task).status == "cancelled"
    assert results_for(town.planner) == ["cancelled: stopped by writer"]
    assert message_of(task).status == "delivered"


def test_stp_01_after_a_stop_the_child_runs_its_next_message_first_of_all(town):
    task = give(town.planner)
    town.planner.api.send(task.child_id, "first after the stop")
    town.writer.api.tool("agent_stop", agent_id=task.child_id)
    town.planner.api.send(task.child_id, "second")
    play()
    assert [entry.text for entry in task.child.entries.filter(role="user").order_by("seq")] == ["first after the stop", "second"]


def test_stp_01_after_a_stop_the_parent_handles_its_next_message(town):
    town.writer.api.send("planner", "go", message_id="m-1")
    turn = claimed(town.planner)
    town.writer.api.tool("agent_stop", agent_id="planner")
    town.writer.api.send("planner", "!spawn afterwards")
    finish(turn)
    play()
    assert SubagentTask.objects.get().description == "afterwards"
    assert len(results_for(town.planner)) == 1


def test_sub_11_the_task_of_a_deleted_cron_job_says_who_deleted_the_job(town):
    job = town.owner.post("/api/cron/jobs", {"name": "Tea", "expression": "0 6 * * *", "prompt": "Spawn."}).json()
    given = Api(town.owner.token, acting=job["agent_id"]).tool("agent", description="Look around.")
    assert town.owner.delete(f"/api/cron/jobs/{job['job_id']}").status_code == 204
    task = SubagentTask.objects.get(task_id=given.json()["task_id"])
    assert (task.status, task.error) == ("cancelled", f"its parent was archived by token {town.owner.token[:4]}…{town.owner.token[-4:]}")


def test_archiving_a_parent_leaves_no_descendant_running_or_waiting(town):
    """SUB-06, its last step."""
    running, queued = give(town.planner), give(town.planner)
    work = begin(running)
    give_up = town.owner.delete("/api/sessions/planner")
    assert give_up.status_code == 204
    waits = [task for task in (running, queued) if task.child_id != work.message.target]
    finish(work)
    play()
    assert {fresh(task).status for task in (running, queued)} == {"cancelled"}
    assert results_for(town.planner) == []
    assert all(task.child.archived_at is None for task in waits)


# --- reading ---------------------------------------------------------------------------------------------------


def test_tasks_are_listed_newest_first_with_state_and_age(town):
    first, second = give(town.planner, "one"), give(town.planner, "two")
    give(town.writer, "not yours")
    finish(begin(first))
    page = town.planner.api.get("/api/subagents").json()
    assert [(task["task_id"], task["status"], task["title"]) for task in page["tasks"]] == [
        (second.task_id, "queued", "two"), (first.task_id, "completed", "one"),
    ]  # fmt: skip
    assert all(task["age"] >= 0 for task in page["tasks"])
    assert (page["has_more"], page["next_cursor"]) == (False, None)
    assert len(town.owner.get("/api/subagents").json()["tasks"]) == 3
    assert len(town.owner.get("/api/subagents", agent_id="planner").json()["tasks"]) == 2
    assert [task["task_id"] for task in town.planner.api.get("/api/subagents", status="queued").json()["tasks"]] == [second.task_id]


def test_pages_of_tasks_follow_their_cursor(town):
    tasks = [give(town.planner, str(number)) for number in range(5)]
    seen, cursor = [], {}
    while True:
        page = town.planner.api.get("/api/subagents", limit=2, **cursor).json()
        seen += [task["task_id"] for task in page["tasks"]]
        if not page["has_more"]:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert seen == [task.task_id for task in reversed(tasks)]
    assert refused(town.planner.api.get("/api/subagents", cursor="x"), 400, field="cursor")


@pytest.mark.parametrize("query", [{"status": "dead"}, {"limit": 0}, {"limit": 51}, {"wings": 2}, {"agent_id": "a\x00"}])
def test_a_bad_query_is_named(town, query):
    assert refused(town.planner.api.get("/api/subagents", **query), 400, field=next(iter(query)))


def test_sec_02_a_foreign_and_a_missing_task_are_the_very_same_404(town):
    task = give(town.planner)
    others = town.stranger.api, town.writer.api
    bodies = {api.get(f"/api/subagents/{name}").content for api in others for name in (task.task_id, "f" * 24, "x%00y", "..")}
    assert len(bodies) == 1
    assert town.stranger.api.get("/api/subagents").json()["tasks"] == []


def test_an_operator_sees_the_tasks_of_every_project(town, operator):
    give(town.planner), give(town.stranger)
    assert {task["project_id"] for task in operator.get("/api/subagents").json()["tasks"]} == {"demo", "elsewhere"}


def test_listing_tasks_costs_the_same_for_any_number(town, django_assert_max_num_queries):
    for number in range(12):
        give(town.planner, str(number))
    with django_assert_max_num_queries(4):
        town.planner.api.get("/api/subagents", limit=50)


def test_the_list_of_agents_shows_whose_child_a_sub_agent_is(town):
    task = give(town.planner)
    agents = {agent["agent_id"]: agent for agent in town.planner.api.tool("agent_list", status="recent").json()["agents"]}
    assert (agents[task.child_id]["parent_agent_id"], agents[task.child_id]["kind"]) == ("planner", "subagent")
    assert agents["planner"]["parent_agent_id"] is None
