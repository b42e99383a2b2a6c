"""Many clients that wait for their messages on one web server cost it no threads and keep nobody from sending."""

from __future__ import annotations

import http.client
import json
import os
from contextlib import ExitStack, closing

import pytest

pytestmark = [pytest.mark.processes, pytest.mark.once]

WAITERS = 300
MOST_THREADS = 40


def open_agents(site, count):
    """A project with sessions, made through the web server; the project's token."""
    site.command("project", "create", "office")
    token = site.command("token", "create", "--project", "office")["token"]
    for number in range(count):
        assert site.post("/api/sessions", {"agent_id": f"agent-{number}"}, token=token).status == 201
    return token


def wait_for_message(site, message_id, *, token):
    """Ask, and leave the answer for later."""
    link = http.client.HTTPConnection("127.0.0.1", site.port, timeout=90)
    link.request("GET", f"/api/messages/{message_id}?wait=60", headers={"Authorization": f"Bearer {token}"})
    return link


def threads(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


def test_three_hundred_waiters_are_answered_when_their_messages_settle_and_have_no_thread_each(site):
    web = site.start("web")
    site.wait_for(lambda: site.get("/healthz").status == 200, within=60)
    token = open_agents(site, 20)
    mail = [site.send(token, f"agent-{number % 20}", f"number {number}") for number in range(WAITERS)]
    with ExitStack() as stack:
        waiters = [stack.enter_context(closing(wait_for_message(site, message_id, token=token))) for message_id in mail]
        site.wait_for(lambda: len(os.listdir(f"/proc/{web.pid}/fd")) >= WAITERS, within=30)  # all have come in
        site.send(token, "agent-0", "is there room for one more?")
        assert threads(web.pid) < MOST_THREADS
        site.start("cluster")  # only now can anything be delivered
        answers = [json.load(link.getresponse()) for link in waiters]
        assert threads(web.pid) < MOST_THREADS
    assert {answer["status"] for answer in answers} == {"delivered"}
    assert [answer["message_id"] for answer in answers] == mail
