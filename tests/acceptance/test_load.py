"""Many clients at once on the settings as shipped: what each was told is what is there.

SENDS_OF_EACH=200 gives the long form: 3,200 sends.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest

pytestmark = pytest.mark.processes

CLIENTS = 16
SENDS_OF_EACH = int(os.environ.get("SENDS_OF_EACH", "12"))
SENDS = CLIENTS * SENDS_OF_EACH
SECONDS_A_SEND = 0.1  # at least this many sends are to go through in a second, however busy the machine is


@pytest.fixture
def start(make_site, tmp_path):
    """A site that is up, with an agent for each client; each turn notes itself in ``effects``."""

    def up(**environment):
        site = make_site(SUZENT_EFFECTS_FILE=str(tmp_path / "effects"), **environment)
        site.up()
        site.command("project", "create", "office")
        site.token = site.command("token", "create", "--project", "office")["token"]
        for number in range(CLIENTS):
            made = site.post("/api/sessions", {"agent_id": f"agent-{number}", "runtime": "scripted"}, token=site.token)
            assert made.status == 201, made
        return site

    return up


@pytest.fixture
def turns(tmp_path):
    return lambda: [json.loads(line)["message_id"] for line in (tmp_path / "effects").read_text().splitlines()]


def send_from_all(site):
    """Every client sends to every agent in turn, as fast as it is answered; the statuses, and what else was read meanwhile."""
    with ThreadPoolExecutor(CLIENTS) as clients:
        return [status for statuses in clients.map(lambda client: [*send_all(site, client)], range(CLIENTS)) for status in statuses]


def send_all(site, client):
    for number in range(SENDS_OF_EACH):
        body = {"agent_id": f"agent-{(client + number) % CLIENTS}", "message": "hello", "message_id": f"m-{client}-{number}"}
        yield site.post("/api/tools/agent_send", body, token=site.token).status
        if number % 10 == client % 10:  # somebody has the lists open
            yield site.get("/api/messages?limit=50", token=site.token).status


def assert_all_delivered_once(site, turns):
    count = "SELECT count(*) FROM agent_inbox_messages WHERE status = 'delivered'"
    site.wait_for(lambda: site.one(count) == SENDS, within=20 + SENDS * SECONDS_A_SEND)
    assert site.one("SELECT count(*) FROM agent_inbox_messages") == SENDS
    assert (len(turns()), len(set(turns()))) == (SENDS, SENDS)
    assert "locked" not in site.log
    assert "Traceback" not in site.log


def test_lse_21_sixteen_clients_at_once_meet_no_locked_database(start, turns):
    site = start(SUZENT_WORKERS="4")
    assert {*send_from_all(site)} == {200, 202}
    assert_all_delivered_once(site, turns)


@pytest.mark.postgresql
@pytest.mark.redis
def test_lse_19_commits_that_take_long_are_waited_for(start, turns):
    """The worker is never told of a row that it cannot see yet."""
    site = start(SUZENT_FAULTS="accept.before_commit:sleep=0.3")
    assert {*send_from_all(site)} == {200, 202}
    assert_all_delivered_once(site, turns)
    assert "DoesNotExist" not in site.log
