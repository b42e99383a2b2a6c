"""Sub-agents of a whole installation: whatever is killed, each parent is woken exactly once for each task.

``KILL_OFFSETS=50 pytest tests/acceptance/test_subagents.py -k offsets`` plays every offset around the child's end; a
normal run plays a few of them.
"""

from __future__ import annotations

import os
import random
import time
from datetime import UTC, datetime

import pytest

from tests.acceptance.conftest import Site

pytestmark = pytest.mark.processes

LEASE = 3
CHILD_TAKES = 0.5  # seconds
FIRST, LAST = -0.060, 0.140  # seconds from when the child's sleep should be over: commit, acknowledge and the parent's turn lie behind
OFFSETS = int(os.environ.get("KILL_OFFSETS", "4"))
CHILDREN = 20
STOPS = 2


@pytest.fixture(scope="module")
def site(tmp_path_factory, prepared):
    """One installation that is up for all tests here; ``token`` is the project's. The first spawn of a turn kills its worker."""
    site = Site(
        tmp_path_factory.mktemp("subagents"), SUZENT_LEASE_SECONDS=str(LEASE), SUZENT_FAULTS="spawn.after_commit:exit:once"
    )
    site.copy(prepared)
    site.up()
    site.command("project", "create", "office")
    site.token = site.command("token", "create", "--project", "office")["token"]
    for agent in ("forked", "asker", "boss", "restless"):
        assert site.post("/api/sessions", {"agent_id": agent, "runtime": "scripted"}, token=site.token).status == 201
    site.wait_until_delivered(site.send(site.token, "forked", "!spawn one\n!spawn two"), within=30)
    yield site
    site.end()


def give(site, parent, description, **options):
    answer = site.post("/api/tools/agent", {"description": description, **options}, token=site.token, X_Suzent_Agent=parent)
    assert answer.status in (200, 201, 202), answer
    return answer.json


def results(site, parent):
    """(message_id, status) of each result for this parent, in order."""
    return site.rows(
        "SELECT message_id, status FROM agent_inbox_messages WHERE kind = 'subagent_result' AND target = ? ORDER BY id", parent
    )


def told(site, parent):
    """The ids of the results in this parent's transcript."""
    found = site.rows(
        "SELECT message_id FROM sessions_app_transcriptentry WHERE session_id = ? AND role = 'user' AND message_id LIKE ?",
        parent, "subagent-result-%",
    )  # fmt: skip
    return [message_id for (message_id,) in found]


def tasks(site, parent):
    return site.rows("SELECT status, error FROM inbox_app_subagenttask WHERE parent_id = ?", parent)


def begun_at(site, agent_id):
    """When the turn of this session began, as seconds of the clock; waits for it."""
    query = "SELECT started_at FROM sessions_app_turn WHERE session_id = ?"
    site.wait_for(lambda: site.rows(query, agent_id), within=30)
    moment = datetime.fromisoformat(str(site.one(query, agent_id)))
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def kill_the_shifts(site, *, at):
    pids = [pid for (pid,) in site.rows("SELECT pid FROM sessions_app_holder WHERE kind = 'shift'")]
    time.sleep(max(at - time.time(), 0))
    site.kill(*pids)


def test_a_parent_that_dies_right_after_spawning_is_run_again_and_gets_its_first_child(site):
    assert (site.data_dir / "fault-spawn.after_commit.struck").exists()
    site.wait_for(lambda: len(told(site, "forked")) >= 2, within=20)
    assert site.one("SELECT count(*) FROM inbox_app_subagenttask WHERE parent_id = 'forked' AND description IN ('one', 'two')") == 2


def test_sub_02_a_worker_killed_at_any_of_these_offsets_around_the_childs_end_wakes_the_parent_once(site):
    step = (LAST - FIRST) / max(OFFSETS - 1, 1)
    for number in range(OFFSETS):
        task = give(site, "asker", f"!sleep {CHILD_TAKES}\nnumber {number}")
        offset = FIRST + number * step
        kill_the_shifts(site, at=begun_at(site, task["agent_id"]) + CHILD_TAKES + offset)
        result = f"subagent-result-{task['task_id']}"
        site.wait_for(lambda result=result: (result, "delivered") in results(site, "asker"), within=40)
        assert told(site, "asker").count(result) == 1, offset
    assert len(results(site, "asker")) == len(told(site, "asker")) == OFFSETS
    assert [status for status, _ in tasks(site, "asker")] == ["completed"] * OFFSETS


def test_twenty_children_that_end_together_are_twenty_results_and_a_death_amid_them_loses_none(site):
    site.send(site.token, "boss", "\n".join(f"!spawn !sleep 1.5\\nnumber {number}" for number in range(CHILDREN)))
    begun = "SELECT turn.session_id FROM sessions_app_turn turn JOIN sessions_app_session s ON s.agent_id = turn.session_id WHERE s.parent_id = 'boss'"
    site.wait_for(lambda: len(site.rows(begun)) >= CHILDREN // 2, within=30)
    kill_the_shifts(site, at=begun_at(site, site.rows(begun)[-1][0]) + 1.5)
    site.wait_for(lambda: [status for _, status in results(site, "boss")] == ["delivered"] * CHILDREN, within=60)
    assert sorted(told(site, "boss")) == sorted(one for one, _ in results(site, "boss"))
    assert len(set(told(site, "boss"))) == CHILDREN


def test_sub_06_stopping_a_parent_that_keeps_spawning_leaves_nothing_running_below_it(site):
    for _ in range(STOPS):
        mail = site.send(site.token, "restless", "\n".join(["!sleep 0.2\n!spawn !sleep 60"] * 20))
        site.wait_for(lambda mail=mail: site.status_of(mail) == "processing", within=30)
        time.sleep(random.uniform(0.3, 1.5))
        stopped = site.post("/api/tools/agent_stop", {"agent_id": "restless"}, token=site.token, X_Suzent_Agent="forked")
        assert stopped.status == 202
        site.wait_until_delivered(mail, within=15)
        site.wait_for(lambda: running_below(site, "restless") == (0, 0), within=10)
    site.wait_until_delivered(site.send(site.token, "restless", "first after the stop"), within=20)
    assert set(tasks(site, "restless")) == {("cancelled", "its parent was stopped by forked")}


def running_below(site, parent):
    """Turns that run in its sub-agents, and tasks of theirs that have not ended."""
    turns = site.one(
        "SELECT count(*) FROM sessions_app_turn WHERE finished_at IS NULL AND session_id IN"
        " (SELECT agent_id FROM sessions_app_session WHERE parent_id = ?)", parent,
    )  # fmt: skip
    return turns, sum(status in ("queued", "running") for status, _ in tasks(site, parent))


def test_a_call_that_waits_is_answered_with_the_result(site):
    answered = give(site, "forked", "!sleep 1\nwaited for", run_in_background=False)
    assert (answered["status"], answered["result"]) == ("completed", "ok: waited for")
