"""Sub-agents in real shifts of this process, and calls that wait for them."""

import asyncio
import json
import threading
import time

import pytest

from inbox_app import aside, long_poll, results
from inbox_app.models import SubagentTask
from inbox_app.shift import run_shift
from sessions_app import actions
from sessions_app.clock import database_now
from sessions_app.runtimes.base import Runtime, TurnResult
from tests.asgi import ask
from tests.inbox_app import odd_runtimes
from tests.inbox_app.test_long_poll import in_a_thread, play
from tests.inbox_app.test_shift import Meanwhile, effects, effects_file, shifts_until_settled, surroundings  # noqa: F401  # fixtures
from tests.subagents import fresh, give, message_of, results_for

pytestmark = pytest.mark.django_db(transaction=True)


class Delegates(Runtime):
    """Gives the text of its message to a sub-agent, waits, and answers with what it heard."""

    def run(self, turn):
        if turn.inputs[0].kind == "subagent_result":
            return TurnResult("heard")
        told = turn.tools.call("agent", description=turn.inputs[0].text, runtime="scripted", run_in_background=False)
        return TurnResult(json.dumps(told))


@pytest.fixture
def town(town, settings):
    settings.RUNTIMES = {**settings.RUNTIMES, "Delegates": f"{__name__}.Delegates", **odd_runtimes.RUNTIMES}
    town.project.runtimes = ["scripted", "Delegates", *odd_runtimes.RUNTIMES]
    town.project.save()
    actions.change_session(town.planner.session, now=database_now(), runtime="scripted")
    return town


def waited(town, *, body):
    text = json.dumps({"run_in_background": False, **body}).encode()
    return ask("POST", "/api/tools/agent", body=text, token=town.planner.api.token)


# --- a call that waits -----------------------------------------------------------------------------------------


def test_a_call_that_waits_is_answered_with_the_result_and_the_message_says_so(town):
    async def scenario():
        call = asyncio.create_task(waited(town, body={"description": "Look around."}))
        await asyncio.sleep(0.3)
        assert not call.done()
        await in_a_thread(run_shift)
        answer = await call
        told = answer.json()
        assert (answer.status, told["status"], told["result"], told["error"]) == (200, "completed", "ok: Look around.", "")
        assert told["parent_agent_id"] == "planner"

    play(scenario)
    assert SubagentTask.objects.count() == 1
    assert results_for(town.planner) == ["completed: ok\nok: Look around."]
    header = town.planner.session.entries.get(role="user").parts[0]
    assert header["task"]["answered"] is True


def test_past_the_wait_a_call_is_answered_202_with_the_task_to_follow(town, monkeypatch):
    monkeypatch.setattr("inbox_app.views.WAIT_LIMIT", 1)

    async def scenario():
        answer = await waited(town, body={"description": "Look around."})
        told = answer.json()
        assert (answer.status, told["status"], set(told)) == (202, "queued", {"agent_id", "task_id", "status", "parent_agent_id"})
        followed = await ask("GET", f"/api/subagents/{told['task_id']}", token=town.planner.api.token)
        assert followed.json()["status"] == "queued"

    play(scenario)
    assert SubagentTask.objects.count() == 1


def test_who_waits_holds_no_thread(town):
    async def scenario():
        calls = [asyncio.create_task(waited(town, body={"description": "!sleep 0.2"})) for _ in range(30)]
        while await in_a_thread(SubagentTask.objects.count) < 30 or long_poll.waiters() < 30:
            await asyncio.sleep(0.05)
        assert threading.active_count() < 40
        assert (await ask("GET", "/api/subagents", token=town.planner.api.token)).status == 200
        await in_a_thread(run_shift)
        answers = await asyncio.wait_for(asyncio.gather(*calls), 60)
        assert {(answer.status, answer.json()["status"]) for answer in answers} == {(200, "completed")}

    play(scenario)


def test_a_refused_call_does_not_wait(town):
    async def scenario():
        answer = await waited(town, body={"description": ""})
        assert (answer.status, answer.json()["extra"]) == (400, {"field": "description"})

    play(scenario)
    assert not SubagentTask.objects.exists()


def test_a_turn_that_waits_leaves_its_place_in_the_shift_to_its_sub_agent(town, settings):
    settings.SUZENT_TURN_CONCURRENCY = 1
    boss = town.opened("boss", runtime="Delegates")
    began = time.monotonic()
    town.owner.send("boss", "!say done", message_id="m-1")
    run_shift()
    assert time.monotonic() - began < results.WAIT_LIMIT / 2
    told = json.loads(boss.session.entries.filter(role="assistant").order_by("seq").first().text)
    assert (told["status"], told["result"]) == ("completed", "done")
    assert results_for(boss) == ["completed: ok\ndone"]
    assert not aside._standing


def test_a_turn_that_waits_sees_its_stop_request(town):
    boss = town.opened("boss", runtime="Delegates")
    sent = town.owner.send("boss", "!sleep 60", message_id="m-1")
    assert sent.status_code == 202
    task_of = SubagentTask.objects.filter(parent="boss")

    class Waiting:
        session, session_id = boss.session, "boss"

    def stop_once_it_waits():
        while not task_of.filter(status="running").exists():
            time.sleep(0.05)
        town.writer.api.tool("agent_stop", agent_id="boss")

    with Meanwhile(Waiting, stop_once_it_waits):
        run_shift()
    assert task_of.get().status == "cancelled"
    assert results_for(boss) == ["cancelled: its parent was stopped by writer"]


# --- time-out --------------------------------------------------------------------------------------------------


def test_a_task_past_its_time_out_ends_at_once_and_its_neighbours_notice_nothing(town, effects):  # noqa: F811
    late = give(town.planner, "!sleep 60\nlate", timeout=1)
    other = give(town.planner, "!sleep 2\nin time", timeout=30)
    began = time.monotonic()
    shifts_until_settled(message_of(late), message_of(other))
    assert time.monotonic() - began < 30
    assert (fresh(late).status, fresh(late).error) == ("timed_out", "it did not end within 1 s of its start")
    assert fresh(other).result == "ok: in time"
    assert message_of(late).attempts == 1
    assert sorted(content.split("\n")[0] for content in results_for(town.planner)) == ["completed: ok", "timed_out: it did not end within 1 s of its start"]


def test_a_child_that_hears_of_nothing_costs_its_process_and_is_fenced_off_from_its_late_answer(town, monkeypatch):
    monkeypatch.setattr("inbox_app.shift.HEED", 0.5)
    hung = give(town.planner, "hangs", runtime="Hanging", timeout=1)
    shifts_until_settled(message_of(hung))
    after = give(town.planner, "afterwards")
    odd_runtimes.hung.set()
    shifts_until_settled(message_of(after))
    assert (fresh(hung).status, fresh(hung).result, fresh(after).status) == ("timed_out", "", "completed")
    assert len(results_for(town.planner)) == 2
