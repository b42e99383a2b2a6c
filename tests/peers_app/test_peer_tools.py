"""The tools towards peers: who sees them, what is read and stopped live, and what is said when one is away."""

from datetime import timedelta

import pytest
from django.utils import timezone

from inbox_app.models import Message
from peers_app.models import Peer
from sessions_app.actions import create_project
from suzent_site.outbound import Timeouts
from tests.peers_app.peer_091 import TOKEN, answer, as_json, empty_session, peer_091
from tests.peers_app.test_delivery import pair
from tests.rest import refused

pytestmark = pytest.mark.django_db

NOBODY = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("peers_app.client.LIVE", Timeouts(connect=1, read=0.4, total=0.8))


def conversation(*texts, **about):
    lines = [{"index": number, "role": "assistant", "text": text, "timestamp": "2026-12-01T10:00:00+00:00"} for number, text in enumerate(texts, 1)]
    return {**empty_session(), "messages": lines, "message_count": len(lines), **about}


def read(town, peer, **options):
    return town.planner.api.tool("agent_read", agent_id=peer.agent_id, **options)


# --- list ------------------------------------------------------------------------------------------------------
def test_peers_are_listed_with_their_state_and_what_waits_for_them(town):
    peers = {state: pair(town, f"http://10.0.0.{number}:9", state=state) for number, state in enumerate(["ready", "offline", "paused", "revoked"], 1)}
    town.planner.api.send(peers["paused"].agent_id, "hello")
    listed = {agent["agent_id"]: agent for agent in town.planner.api.tool("agent_list", status="recent").json()["agents"] if agent["kind"] == "remote"}
    assert {name: agent["status"] for name, agent in listed.items()} == {peer.agent_id: state for state, peer in peers.items()}
    assert [agent["unread"] for agent in listed.values()] == [int(name == peers["paused"].agent_id) for name in listed]
    active = town.planner.api.tool("agent_list").json()["agents"]
    assert [agent["agent_id"] for agent in active] == [peers["ready"].agent_id]


def test_a_peer_is_seen_by_the_agents_of_its_project_only(town):
    peer = pair(town, NOBODY)
    for call in (
        town.stranger.api.send(peer.agent_id, "hello"), town.stranger.api.tool("agent_read", agent_id=peer.agent_id),
        town.stranger.api.tool("agent_stop", agent_id=peer.agent_id), town.planner.api.send("peer:" + "0" * 12, "hello"),
        town.planner.api.send(peer.agent_id.upper(), "hello"), town.planner.api.send(f"{peer.agent_id} ", "hello"),
        town.planner.api.send(f"agent:{peer.agent_id}", "hello"), town.planner.api.send("peer:", "hello"),
    ):  # fmt: skip
        assert refused(call, 404, code="not_found")
    assert town.stranger.api.tool("agent_list", status="recent").json()["agents"][0]["agent_id"] == "stranger"
    assert not Message.objects.exists()


def test_a_peer_that_we_still_ask_is_no_agent_yet(town):
    peer = Peer.objects.create(
        project=town.project, name="B", base_url=NOBODY, state="asking", request_id="r", expires_at=timezone.now(), created_at=timezone.now()
    )
    assert refused(town.planner.api.send(peer.agent_id, "hello"), 404)
    assert not [agent for agent in town.planner.api.tool("agent_list", status="recent").json()["agents"] if agent["kind"] == "remote"]


def test_a_project_that_is_archived_takes_its_peers_along(town):
    elsewhere = create_project("gone")
    peer = pair(town, NOBODY)
    Peer.objects.filter(pk=peer.pk).update(project=elsewhere)
    elsewhere.archived_at = timezone.now()
    elsewhere.save()
    assert refused(town.planner.api.send(peer.agent_id, "hello"), 404)


# --- read ------------------------------------------------------------------------------------------------------
def test_a_peers_conversation_is_read_live_in_the_words_of_agent_read(town):
    with peer_091(session=conversation("one", "two", status="active", omitted_message_count=3, transcript_truncated=True)) as there:
        peer = pair(town, there.url, state="offline")
        got = read(town, peer).json()
    assert got["messages"] == [
        {"seq": number, "role": "assistant", "text": text, "created_at": "2026-12-01T10:00:00Z"} for number, text in [(1, "one"), (2, "two")]
    ]
    assert {name: got[name] for name in ("agent_id", "kind", "status", "title", "message_count", "omitted_message_count", "transcript_truncated")} == {
        "agent_id": peer.agent_id, "kind": "remote", "status": "active", "title": "B", "message_count": 2, "omitted_message_count": 3,
        "transcript_truncated": True,
    }  # fmt: skip
    peer.refresh_from_db()
    assert (peer.state, peer.last_contact_at is not None) == ("ready", True)


def test_before_leaves_out_what_is_newer(town):
    with peer_091(session=conversation("one", "two", "three")) as there:
        assert [line["text"] for line in read(town, pair(town, there.url), before=3).json()["messages"]] == ["one", "two"]


def test_what_is_odd_in_a_conversation_is_mended_or_left_out(town):
    lines = [
        {"index": 7, "role": "wizard", "text": "a\x00b", "timestamp": 0}, {"index": True, "role": None, "text": "c", "timestamp": "yesterday"},
        {"role": "user", "text": 5}, "no line", {"role": "user", "text": "\ud800", "timestamp": 1e300},
    ]  # fmt: skip
    with peer_091(session={"status": "idle", "messages": lines}) as there:
        got = read(town, pair(town, there.url)).json()
    assert [(line["seq"], line["role"], line["created_at"]) for line in got["messages"]] == [(7, "system", "1970-01-01T00:00:00Z"), (1, "system", None), (4, "user", None)]
    assert "\x00" not in got["messages"][0]["text"]


def test_a_conversation_of_any_length_is_bounded_here_too(town):
    with peer_091(session=conversation(*["x" * 9_000] * 5)) as there:
        got = read(town, pair(town, there.url)).json()
    assert (len(got["messages"]), got["omitted_message_count"], got["transcript_truncated"]) == (2, 3, True)
    with peer_091(session=conversation("y" * 30_000)) as there:
        got = read(town, pair(town, there.url, name="C")).json()
    assert len(got["messages"][0]["text"]) == 20_000


ODD = {
    "404": as_json(404, {"error": "x"}), "html": answer(200, b"<html>"), "empty": as_json(200, {}), "a list": as_json(200, []),
    "no lines": as_json(200, {"status": "idle", "messages": "none"}), "huge": answer(200, b"[" + b"1," * 1_000_000 + b"1]"), "cut": b"HTTP/1.1 2",
    "redirect": answer(302, b"", "Location: http://127.0.0.1:9/"), "a list for a status": as_json(200, {**empty_session(), "status": ["idle"]}),
}  # fmt: skip


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_what_is_no_conversation_is_503_and_says_when_there_was_contact(town, odd):
    with peer_091(lambda connection, request: connection.sendall(odd)) as there:
        peer = pair(town, there.url, last_contact_at=timezone.now() - timedelta(hours=3))
        got = read(town, peer)
    assert refused(got, 503, code="peer_unavailable")
    assert "Last contact: 3 h ago." in got.json()["detail"]
    peer.refresh_from_db()
    assert peer.state == "offline"


def test_a_peer_that_is_away_is_503_and_one_not_in_use_is_409(town):
    peer = pair(town, NOBODY)
    assert "Last contact: never." in read(town, peer).json()["detail"]
    for state, words in [("paused", "paused by an operator"), ("revoked", "does not take our token"), ("off", "switched off")]:
        Peer.objects.filter(pk=peer.pk).update(state=state)
        got = read(town, peer)
        assert refused(got, 409, code="peer_not_in_use")
        assert words in got.json()["detail"]


def test_per_09_a_read_that_is_turned_away_shows_the_peer_as_revoked(town):
    with peer_091(token="another") as there:
        peer = pair(town, there.url)
        assert refused(read(town, peer), 409, code="peer_not_in_use")
    peer.refresh_from_db()
    assert peer.state == "revoked"


def test_per_19_no_token_in_what_an_agent_is_told(town):
    with peer_091(lambda connection, request: connection.sendall(as_json(500, {"error": f"you sent {TOKEN}"}))) as there:
        assert TOKEN not in read(town, pair(town, there.url)).content.decode()


# --- stop ------------------------------------------------------------------------------------------------------
def test_a_stop_is_asked_for_there(town):
    with peer_091() as there:
        peer = pair(town, there.url)
        got = town.planner.api.tool("agent_stop", agent_id=peer.agent_id)
        assert (got.status_code, got.json()) == (202, {"agent_id": peer.agent_id, "status": "stopping"})
        there.stop = (409, {"error": "Peer agent is not active"})
        assert refused(town.planner.api.tool("agent_stop", agent_id=peer.agent_id), 409, code="not_active")
    assert refused(town.planner.api.tool("agent_stop", agent_id=peer.agent_id), 503, code="peer_unavailable")
