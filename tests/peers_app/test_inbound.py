"""``inbound`` through the product's own ASGI application: wire.md 3, sessions, SSE and attachments."""

import asyncio
import json
import threading

import pytest
from asgiref.sync import sync_to_async
from django.db import connection

from inbox_app.models import Message
from peers_app import devices, grants, streams
from sessions_app import actions, direct, lanes
from sessions_app.clock import database_now
from sessions_app.models import Lane, Session, Turn
from tests.asgi import Gone, ask, stop
from tests.factories import ProjectFactory
from tests.peers_app import talking_runtimes
from tests.peers_app.far_device import far_device
from tests.peers_app.pairing import paired
from tests.people import person

pytestmark = pytest.mark.django_db(transaction=True)
PATH = "/channels/suzent/inbound"
WAIT = 20  # seconds after which a test that hangs fails instead


@pytest.fixture(autouse=True)
def with_talking_runtimes(settings):
    settings.RUNTIMES = {**settings.RUNTIMES, **talking_runtimes.RUNTIMES}
    talking_runtimes.go_on.clear()
    talking_runtimes.started.clear()
    yield
    talking_runtimes.go_on.set()
    for left in [thread for thread in threading.enumerate() if thread.name.startswith(("direct-", "inbound-"))]:
        left.join(WAIT)
    direct.close_web()


def a_device(runtime="echo", **about):
    project = ProjectFactory(runtimes=["echo", "scripted", *talking_runtimes.RUNTIMES])
    return paired(project=project, runtime=runtime, **about)


def call(device, body=None, *, raw=None, **about):
    """One call, to the end of its stream."""

    async def whole():
        answer = await ask("POST", PATH, token=device.token, body=raw if raw is not None else json.dumps(body).encode(), **about)
        await stop()
        return answer

    return asyncio.run(whole())


def events(answer):
    assert answer.status == 200, answer.body
    assert answer.headers["content-type"] == "text/event-stream"
    blocks = answer.body.decode().split("\n\n")
    assert blocks.pop() == ""
    assert all(block.startswith("data: ") and "\n" not in block for block in blocks)
    return [json.loads(block.removeprefix("data: ")) for block in blocks]


def kinds(found):
    return [event["type"] for event in found]


def lines(agent_id):
    return list(Session.objects.get(pk=agent_id).entries.order_by("seq").values_list("role", "text"))


# --- the stream --------------------------------------------------------------------------------------------------
def test_a_turn_is_streamed_in_the_order_of_the_protocol():
    device = a_device()
    found = events(call(device, {"content": " Hello. ", "unknown": [1]}))
    assert kinds(found) == ["RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "RUN_FINISHED"]
    begin, start, content, end, finish = found
    assert (begin["threadId"], begin["runId"], isinstance(begin["timestamp"], int)) == (device.agent_id, finish["runId"], True)
    assert finish["threadId"] == device.agent_id
    assert start["role"] == "assistant"
    assert start["messageId"] == content["messageId"] == end["messageId"]
    assert content["delta"] == "ok: Hello."
    assert lines(device.agent_id) == [("user", "Hello."), ("assistant", "ok: Hello.")]
    assert Turn.objects.values_list("origin", "state").get() == ("peer", "committed")


def test_what_a_runtime_streams_is_passed_on_and_not_said_twice():
    found = events(call(a_device("talks"), {"content": "Count."}))
    assert kinds(found) == [
        "RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "TOOL_CALL_START", "TOOL_CALL_END",
        "CUSTOM", "RUN_FINISHED",
    ]  # fmt: skip
    assert "".join(event.get("delta", "") for event in found) == "one two"
    assert (found[-2]["name"], found[-2]["value"]) == ("usage_update", {"output_tokens": 2})


def test_a_turn_that_breaks_says_so_and_then_that_it_is_over():
    device = a_device("breaks")
    found = events(call(device, {"content": "Hello."}))
    assert kinds(found) == ["RUN_STARTED", "RUN_ERROR", "RUN_FINISHED"]
    assert "no model today" in found[1]["message"]
    assert device.get("/channels/suzent/session").json()["status"] == "idle"


def test_a_stopped_turn_ends_its_stream_too():
    device = a_device("waits")

    async def scenario():
        streaming = asyncio.create_task(ask("POST", PATH, token=device.token, body=b'{"content": "Wait."}'))
        await begun()
        stopped = await ask("POST", "/channels/suzent/stop", token=device.token)
        answer = await asyncio.wait_for(streaming, WAIT)
        await stop()
        return stopped, answer

    stopped, answer = asyncio.run(scenario())
    assert stopped.json() == {"stopped": True, "agent_id": device.agent_id}
    assert kinds(events(answer))[-1] == "RUN_FINISHED"
    assert Turn.objects.get().state == "stopped"


async def begun():
    await asyncio.to_thread(talking_runtimes.started.wait, WAIT)


def test_the_turn_survives_a_caller_that_goes_away():
    device = a_device("waits")

    async def scenario():
        hang_up = asyncio.Event()
        streaming = asyncio.create_task(ask("POST", PATH, token=device.token, body=b'{"content": "Wait."}', hang_up=hang_up))
        await begun()
        hang_up.set()
        try:
            await asyncio.wait_for(streaming, WAIT)
        except Gone:
            pass
        talking_runtimes.go_on.set()
        await sync_to_async(until_idle)(device)
        await stop()

    asyncio.run(scenario())
    assert lines(device.agent_id) == [("user", "Wait."), ("assistant", "at last")]
    lane = Lane.objects.get(key=f"agent:{device.agent_id}")
    assert (lane.lease_owner, Turn.objects.get().state) == (None, "committed")


def until_idle(device):
    for left in [thread for thread in threading.enumerate() if thread.name.startswith(("direct-", "inbound-"))]:
        left.join(WAIT)
    connection.close()


def test_a_reader_who_is_too_slow_is_told_and_holds_up_nothing():
    """Pours 9 MiB at a reader that takes nothing before the turn is over."""
    device = a_device("pours")
    stream = a_stream(device, "Pour.")

    async def scenario():
        await stream.ready()
        await sync_to_async(until_idle)(device)
        found = [json.loads(block.removeprefix("data: ")) async for block in stream.blocks()]
        await stop()
        return found

    found = asyncio.run(scenario())
    assert kinds(found)[-2:] == ["RUN_ERROR", "RUN_FINISHED"]
    assert len(found) < 9
    assert lines(device.agent_id)[-1] == ("assistant", "poured")


def a_stream(device, content):
    now = database_now()
    session = devices.opened(device.grant, device.agent_id, now=now)
    return streams.Stream(streams.Inbound(device.grant, session, content, (), hops=0, received_at=now))


def test_a_session_that_stays_busy_is_told_by_its_status(monkeypatch):
    monkeypatch.setattr(streams, "LANE_WAIT", 0.2)
    device = a_device()
    devices.opened(device.grant, device.agent_id, now=database_now())
    lanes.pause(f"agent:{device.agent_id}", now=database_now())
    answer = call(device, {"content": "Hello."})
    assert (answer.status, list(answer.json())) == (503, ["error"])
    assert int(answer.headers["retry-after"]) > 0
    assert not Turn.objects.exists()


def test_a_device_cannot_take_all_the_places_there_are():
    places = streams.Places(8)
    assert [places.take("a"), places.take("a"), places.take("a"), places.take("b")] == [True, True, False, True]
    places.give_back("a")
    assert places.take("a")


def test_there_are_no_more_places_than_there_are():
    places = streams.Places(2)
    assert [places.take("a"), places.take("b"), places.take("c")] == [True, True, False]


def test_a_device_whose_share_is_used_up_is_told_to_come_again(monkeypatch):
    device = a_device()
    monkeypatch.setattr(streams, "_places", streams.Places(4))
    assert streams._places.take(device.grant.device_id)
    answer = call(device, {"content": "Hello."})
    assert (answer.status, list(answer.json())) == (503, ["error"])
    streams._places.give_back(device.grant.device_id)
    assert call(device, {"content": "Hello."}).status == 200


def test_per_09_a_device_that_is_revoked_while_it_waits_for_the_lane_gets_no_turn():
    device = a_device()
    stream = a_stream(device, "Hello.")
    grants.revoke(device.grant, now=database_now())

    async def scenario():
        await stream.ready()
        await stop()

    asyncio.run(scenario())
    assert stream.refusal.status == 401
    assert not Turn.objects.exists()


def test_an_archived_session_is_told_by_its_status():
    device = a_device()
    actions.archive_session(devices.opened(device.grant, device.agent_id, now=database_now()), now=database_now())
    assert call(device, {"content": "Hello."}).status == 409


# --- hops --------------------------------------------------------------------------------------------------------
def test_what_a_turn_sends_for_a_device_is_one_hop_further():
    device = a_device("sends", tools=["agent_send"])
    here = person("here", project=device.grant.project)
    for header, hops in ((), 1), (((b"x-suzent-hops", b"4"),), 5), (((b"x-suzent-hops", b"16"),), None), (((b"x-suzent-hops", b"many"),), None):
        Message.objects.all().delete()
        call(device, {"content": here.agent_id}, headers=header)
        assert list(Message.objects.values_list("hops", flat=True)) == ([] if hops is None else [hops])


def test_a_chain_that_is_too_long_ends_here():
    device = a_device()
    answer = call(device, {"content": "Hello."}, headers=[(b"x-suzent-hops", b"17")])
    assert (answer.status, answer.json()) == (422, {"error": "hop_limit"})
    assert not Turn.objects.exists()


# --- sessions ----------------------------------------------------------------------------------------------------
def test_a_device_names_its_own_sessions_by_a_plain_name_or_in_full():
    device = a_device()
    own = device.agent_id
    for chat_id, agent_id in [
        (None, own), ("", own), (own, own), ("planner", f"{own}:planner"), (f"{own}:planner", f"{own}:planner"), ("a" * 64, f"{own}:{'a' * 64}"),
    ]:  # fmt: skip
        assert events(call(device, {"content": "Hello.", "chat_id": chat_id}))[0]["threadId"] == agent_id
    assert [len(lines(agent_id)) for agent_id in (own, f"{own}:planner", f"{own}:{'a' * 64}")] == [6, 4, 2]


# --- attachments -------------------------------------------------------------------------------------------------
FILE = "/nodes/peer-files/f1"


def attached(url, size=5, name="../../etc/note.txt"):
    return {"content": "Look.", "attachments": [{"id": "f1", "url": url, "token": "file-token", "name": name, "size": size, "media_type": "text/plain"}]}


def test_an_attachment_is_pulled_from_the_device_with_its_own_token():
    device = a_device()
    with far_device(**{FILE: (200, b"bytes")}) as far:
        assert kinds(events(call(device, attached(far.url + FILE))))[-1] == "RUN_FINISHED"
        [heard] = far.served.heard
    assert b"Bearer file-token" in heard
    assert device.token.encode() not in heard
    [header] = Session.objects.get(pk=device.agent_id).entries.get(role="user").parts
    [kept] = header["attachments"]
    assert (kept["name"], kept["media_type"], kept["size"]) == ("note.txt", "text/plain", 5)
    with open(kept["path"], "rb") as file:
        assert file.read() == b"bytes"


def test_an_attachment_that_is_not_as_it_was_said_ends_the_call_before_the_turn():
    device = a_device()
    for served in ((302, b"bytes"), (404, b"bytes"), (200, b"byte"), (200, b"bytes!"), (500, b"")):
        with far_device(**{FILE: served}) as far:
            answer = call(device, attached(far.url + FILE))
        assert (answer.status, list(answer.json())) == (502, ["error"])
    assert not Turn.objects.exists()


def test_a_body_that_is_too_large_is_refused_in_the_shape_of_the_protocol():
    answer = call(a_device(), raw=b"x" * (1024 * 1024 + 1))
    assert (answer.status, list(answer.json())) == (413, ["error"])
