"""Two real installations and a link that loses answers: each message exactly one turn on the other side, in order.

The long form, of which the issue speaks: SUZENT_PEER_MESSAGES=1000 SUZENT_PEER_RESTARTS=5.
"""

from __future__ import annotations

import os
import time

import pytest

from tests.acceptance.peers.cutting_proxy import cutting_proxy

pytestmark = [pytest.mark.processes, pytest.mark.once]

MESSAGES = int(os.environ.get("SUZENT_PEER_MESSAGES", "12"))
RESTARTS = int(os.environ.get("SUZENT_PEER_RESTARTS", "0"))  # of everything on both sides; single processes die anyway
LOSES = 0.2
NEAR_DIES = "peer.before_send:exit:once,peer.after_send:exit:once"
FAR_DIES = "peer.after_receive_commit:exit:once"
SHRUNK = {"SUZENT_PEER_BACKOFF_CAP": "1", "SUZENT_LEASE_SECONDS": "3"}  # of 4 hours and 30 seconds


def two_offices(make_site):
    """Both with the project ``office``, which is made once; the token of near's planner."""
    near, far = make_site(**SHRUNK, SUZENT_FAULTS=NEAR_DIES), make_site(new=True, **SHRUNK, SUZENT_FAULTS=FAR_DIES)
    _, planner = near.in_one_process(["project", "create", "office"], ["session", "create", "--id", "planner"])
    far.copy(near)
    return near, far, planner["token"]


def start(*sites):
    """With ``up``: far's web server dies, and somebody has to start it anew."""
    for site in sites:
        site.start("up")


def pair(near, far, url):
    """Both operators agree, by commands, while the rest still starts; the address of ``far`` as ``near`` knows it."""
    far.wait_for(lambda: far.get("/healthz").status == 200, within=60)
    asked = near.command("peer", "ask", url)
    far.command("grant", "approve", asked["request_id"])
    near.wait_for(lambda: near.one("SELECT state FROM peers_app_peer") == "ready", within=60)
    return f"peer:{near.one('SELECT peer_id FROM peers_app_peer')}"


def turns_of(far):
    """What the device's session was asked, in order."""
    asked = far.rows("SELECT text FROM sessions_app_transcriptentry WHERE session_id LIKE 'suzent:%' AND role = 'user' ORDER BY seq")
    return [text for (text,) in asked]


def restart(*sites):
    """As a power cut would."""
    for site in sites:
        site.kill(*site.everyone)
    for site in sites:
        site.wait_until_gone(*site.seen, within=20)
    start(*sites)
    for site in sites:
        site.wait_for(site.is_ready, within=60)


def unsettled(site):
    return site.one("SELECT count(*) FROM agent_inbox_messages WHERE lane IS NOT NULL")


def test_per_01_per_14_a_link_that_loses_answers_and_sides_that_die_double_and_lose_nothing(make_site):
    """On each side a process dies once at its worst moment: before and after sending, and after storing."""
    near, far, token = two_offices(make_site)
    start(near, far)
    with cutting_proxy(far.port, loses=LOSES) as proxy:
        peer = pair(near, far, proxy.url)
        near.wait_for(near.is_ready, within=60)
        began = time.monotonic()
        sent = [f"message {number}" for number in range(MESSAGES)]
        for number, text in enumerate(sent, 1):
            near.send(token, peer, text)
            if RESTARTS and number % (MESSAGES // RESTARTS) == 0:
                restart(far, near)
        near.wait_for(lambda: unsettled(near) == 0, within=60 + MESSAGES)
        far.wait_for(lambda: unsettled(far) == 0, within=60)
        seconds = time.monotonic() - began
    assert turns_of(far) == sent
    assert near.rows("SELECT status, count(*) FROM agent_inbox_messages GROUP BY status") == [("delivered", MESSAGES)]
    assert proxy.seen["lost"] > 0
    print(f"{MESSAGES} messages, {RESTARTS} restarts of each side, answers {dict(proxy.seen)}, {seconds:.1f} s")  # noqa: T201
