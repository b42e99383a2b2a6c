"""Whole installations whose processes die at the worst moments: one committed turn a message, by itself, soon.

The lease is 3 seconds here instead of 30, so that what waits for one is seen in a test.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time

import pytest

pytestmark = pytest.mark.processes

LEASE = 3
RECOVERY = LEASE + 10  # seconds after the crash, without anybody's help


@pytest.fixture
def start(make_site, tmp_path):
    """A site that is up, with the sessions asker and helper; the scripted runtime notes its turns in ``effects``."""

    def up(*agents, gates=None, **environment):
        site = make_site(**{"SUZENT_LEASE_SECONDS": str(LEASE), "SUZENT_EFFECTS_FILE": str(tmp_path / "effects"), **environment})
        if gates is not None:
            gates.append(site.put_gate_before("DATABASE_URL"))
        site.up()
        site.token = site.open_session("asker")
        for agent in agents or ["helper"]:
            site.open_session(agent, runtime="scripted")
        return site

    return up


@pytest.fixture
def effects(tmp_path):
    def read():
        with contextlib.suppress(FileNotFoundError):
            return [json.loads(line)["message_id"] for line in (tmp_path / "effects").read_text().splitlines()]
        return []

    return read


def replies(site, agent="helper"):
    found = site.rows("SELECT text FROM sessions_app_transcriptentry WHERE session_id = ? AND role = 'assistant' ORDER BY seq", agent)
    return [text for (text,) in found]


def outcomes(site, message_id):
    found = site.rows(
        "SELECT outcome FROM inbox_app_attempt WHERE message_id = (SELECT id FROM agent_inbox_messages WHERE message_id = ?)"
        " ORDER BY number", message_id,
    )  # fmt: skip
    return [outcome for (outcome,) in found]


def column(site, name, message_id):
    return site.one(f"SELECT {name} FROM agent_inbox_messages WHERE message_id = ?", message_id)  # our own names


def shift_that_runs(site, message_id):
    """The pid of the process in which the message's turn runs."""
    site.wait_for(lambda: site.status_of(message_id) == "processing", within=10)
    return site.one(
        "SELECT pid FROM sessions_app_holder WHERE owner = (SELECT lease_owner FROM sessions_app_lane WHERE key = ?)", "agent:helper"
    )


@pytest.mark.parametrize(
    ("point", "executed"),
    [("claim.after_commit", 1), ("turn.before_commit", 2), ("turn.after_commit", 1), ("ack.before_commit", 1)],
)
def test_a_worker_that_dies_at_a_crash_point_costs_no_turn_and_doubles_none(start, effects, point, executed):
    """LSE-03, LSE-04: what was executed and not committed is executed again; what was committed is not."""
    site = start(SUZENT_FAULTS=f"{point}:exit:once")
    first = site.send(site.token, "helper", "number 0")
    mail = [first, *[site.send(site.token, "helper", f"number {number}") for number in range(1, 4)]]
    site.wait_until_delivered(*mail, within=RECOVERY)
    assert (site.data_dir / f"fault-{point}.struck").exists()
    assert replies(site) == [f"ok: number {number}" for number in range(4)]
    assert effects().count(first) == executed
    assert column(site, "attempts", first) == 0
    assert outcomes(site, first)[-1] == "delivered"


def test_a_shift_that_is_stopped_past_its_lease_and_goes_on_changes_nothing(start, effects):
    site = start()
    mail = site.send(site.token, "helper", "!sleep 2\nslow")
    shift = shift_that_runs(site, mail)
    site.kill(shift, number=signal.SIGSTOP)
    site.wait_until_delivered(mail, within=LEASE + 15)
    with contextlib.suppress(ProcessLookupError):  # normally the watchdog has ended it
        os.kill(shift, signal.SIGCONT)
    behind = site.send(site.token, "helper", "behind it")
    site.wait_until_delivered(behind, within=15)
    assert replies(site) == ["ok: slow", "ok: behind it"]
    assert outcomes(site, mail) == ["lost", "delivered"]


@pytest.mark.postgresql
@pytest.mark.parametrize(
    ("script", "tries"),
    [("!sleep 1\n!fail 1\nagain", ["retried", "delivered"]), ("!sleep 1\n!list\nagain", ["released", "delivered"])],
)
def test_a_turn_that_ends_badly_while_the_database_is_away_goes_on_when_it_is_back(start, script, tries):
    """No lane waits for its lease, and no message becomes a suspect."""
    gates = []
    site = start(gates=gates, SUZENT_LEASE_SECONDS="30")
    mail = site.send(site.token, "helper", script)
    shift_that_runs(site, mail)
    gates[0].shut()
    time.sleep(2.5)  # the turn ends meanwhile
    gates[0].open()
    site.wait_until_delivered(mail, within=15)
    assert (outcomes(site, mail), column(site, "losses", mail)) == (tries, 0)


@pytest.mark.postgresql
def test_a_shift_that_would_leave_while_the_database_is_away_leaves_in_order_afterwards(start):
    """Its row, left behind, would have its process killed for being silent, and the next shift with it."""
    gates = []
    site = start(gates=gates)
    site.wait_until_delivered(site.send(site.token, "helper", "hello"), within=10)
    gates[0].shut()
    time.sleep(4)  # it lingers for two
    gates[0].open()
    site.wait_for(lambda: not site.rows("SELECT 1 FROM sessions_app_holder"), within=10)
    site.wait_until_delivered(site.send(site.token, "helper", "hello again"), within=10)


def test_a_turn_three_times_as_long_as_the_lease_runs_once(start, effects):
    """LSE-01."""
    site = start()
    mail = site.send(site.token, "helper", f"!sleep {3 * LEASE}\nlong")
    site.wait_until_delivered(mail, within=3 * LEASE + 10)
    assert (effects(), replies(site), outcomes(site, mail)) == ([mail], ["ok: long"], ["delivered"])
    assert (column(site, "attempts", mail), column(site, "losses", mail)) == (0, 0)


def test_a_message_that_kills_its_worker_fails_and_its_neighbours_are_answered_once(start, effects):
    """LSE-07."""
    agents = [f"good-{number}" for number in range(10)]
    site = start("helper", SUZENT_ALLOW_CRASH="1")
    token = site.command("token", "create", "--project", "office")["token"]
    for agent in agents:
        assert site.post("/api/sessions", {"agent_id": agent, "runtime": "scripted"}, token=token).status == 201
    deadly = site.send(site.token, "helper", "!crash 99")
    good = [site.send(site.token, agent, "!sleep 0.3\nhello") for agent in agents]
    site.wait_until_delivered(*good, within=20)
    site.wait_for(lambda: site.status_of(deadly) == "failed", within=45)
    assert column(site, "reason", deadly) == "worker_died"
    assert outcomes(site, deadly) == ["lost", "lost", "lost", "failed"]
    assert all(replies(site, agent) == ["ok: hello"] for agent in agents)
    assert all(column(site, "attempts", one) == 0 for one in good)
    after = site.send(site.token, "helper", "still there?")
    site.wait_until_delivered(after, within=15)


def test_mail_whose_wake_up_was_lost_is_delivered_all_the_same(start):
    """LSE-17: nobody works, the broker's contents vanish, and nothing else is sent."""
    site = start()
    crew = site.crew
    site.kill(site.supervisor, crew.main, crew.sentinel, *crew.workers, number=signal.SIGSTOP)
    mail = [site.send(site.token, "helper", f"number {number}") for number in range(5)]
    site.empty_broker()
    site.kill(site.supervisor, crew.main, crew.sentinel, *crew.workers, number=signal.SIGCONT)
    site.wait_until_delivered(*mail, within=20)
    assert replies(site) == [f"ok: number {number}" for number in range(5)]
