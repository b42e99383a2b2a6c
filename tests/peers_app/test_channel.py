"""The channel paths, row by row of wire.md 3."""

import json
from datetime import timedelta

import pytest

from inbox_app.models import DedupeKey, Message
from inbox_app.retention import purge
from inbox_app.tools import TurnTools
from peers_app import grants
from peers_app.models import DeviceGrant
from sessions_app import actions, turns
from sessions_app.clock import database_now
from sessions_app.models import Session, Turn
from tests.factories import claimed, committed, delivered
from tests.peers_app.pairing import Device, paired, wrong
from tests.people import office, planner, stranger

pytestmark = pytest.mark.django_db

MALFORMED = [
    b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b'{"message_id": "m"}', b'{"content": "c"}',
    b'{"message_id": "m", "content": "c", "more": 1}', b'{"message_id": 1, "content": "c"}', b'{"message_id": "m", "content": ["c"]}',
    b'{"message_id": "m", "content": null}', b'{"message_id": "", "content": "c"}', b'{"message_id": "m", "content": "  \\n "}',
    b'{"message_id": "m/n", "content": "c"}', b'{"message_id": "\\u00e4", "content": "c"}', b'{"message_id": "m", "content": "a\\u0000"}',
    b'{"message_id": "m", "content": "\\ud800"}', b'{"message_id": "m", "message_id": "n", "content": "c"}', b"[" * 5000,
    json.dumps({"message_id": "m" * 129, "content": "c"}).encode(), json.dumps({"message_id": "m", "content": "c" * 20_001}).encode(),
]  # fmt: skip


# --- inbox -------------------------------------------------------------------------------------------------------
def test_mail_is_accepted_once_it_is_stored():
    device = paired()
    answer = device.send("m-1", "Hello.")
    assert answer.status_code == 202
    assert answer.json() == {"accepted": True, "created": True, "message_id": "m-1", "status": "pending"}
    [message] = Message.objects.all()
    assert (message.content, message.kind, message.target, message.sender) == ("Hello.", "remote_agent_message", device.agent_id, None)
    assert message.message_id.startswith("remote-")


def test_the_same_mail_again_is_the_same_row_and_tells_how_far_it_is():
    device = paired()
    device.send("m-1", "Hello.")
    assert device.send("m-1", "Hello.").json() == {"accepted": True, "created": False, "message_id": "m-1", "status": "pending"}
    delivered(Message.objects.get())
    assert device.send("m-1", "Hello.").json()["status"] == "delivered"
    assert Message.objects.count() == 1


def test_mail_that_was_purged_is_still_known(settings):
    device = paired()
    device.send("m-1", "Hello.")
    delivered(Message.objects.get())
    settings.SUZENT_RETENTION_DAYS = 1
    purge(now=database_now() + timedelta(days=3), rest=lambda _: False)
    assert (Message.objects.count(), DedupeKey.objects.count()) == (0, 1)
    assert device.send("m-1", "Hello.").json() == {"accepted": True, "created": False, "message_id": "m-1", "status": "delivered"}
    assert wrong(device.send("m-1", "Something else."), 409)


def test_the_same_id_with_other_content_is_a_conflict():
    device = paired()
    device.send("m-1", "Hello.")
    assert wrong(device.send("m-1", "Good bye."), 409)
    assert Message.objects.get().content == "Hello."


def test_both_fields_are_stripped():
    device = paired()
    assert device.send(" m-1\n", "\tHello. \n").json()["message_id"] == "m-1"
    assert Message.objects.get().content == "Hello."
    assert device.send("m-1", "Hello.").json()["created"] is False


@pytest.mark.parametrize("body", MALFORMED, ids=range(len(MALFORMED)))
def test_malformed_mail_is_refused_in_the_same_words(body):
    assert wrong(paired().post("/channels/suzent/inbox", raw=body), 400, "Invalid inbox payload")
    assert not Message.objects.exists()


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "nonsense"])
def test_the_content_type_is_not_checked(content_type):
    answer = paired().post("/channels/suzent/inbox", {"message_id": "m", "content": "c"}, content_type=content_type)
    assert answer.status_code == 202


@pytest.mark.parametrize("character", ["a", "ä", "€", "😀"])
def test_per_11_the_limit_counts_characters_of_any_width(character):
    device = paired()
    assert device.send("m-1", character * 20_000).status_code == 202
    assert wrong(device.send("m-2", character * 20_001), 400)


def test_per_11_ids_of_the_full_length_are_taken():
    assert paired().send("Az09_.:-" * 16, "Hello.").status_code == 202


def test_an_id_that_looks_like_one_of_ours_is_theirs():
    device = paired()
    assert device.send("failure-1-0", "Hello.").status_code == 202
    assert Message.objects.get().message_id.startswith("remote-")


def test_a_full_mailbox_asks_to_come_back_later(settings):
    settings.SUZENT_LANE_LIMIT = 2
    device = paired()
    for number in range(2):
        device.send(f"m-{number}", "Hello.")
    answer = device.send("m-2", "Hello.")
    assert wrong(answer, 429)
    assert int(answer["Retry-After"]) > 0
    assert device.send("m-1", "Hello.").status_code == 202


def test_mail_to_a_session_that_was_archived_is_refused_for_good():
    device = paired()
    device.send("m-1", "Hello.")
    actions.archive_session(Session.objects.get(pk=device.agent_id), now=database_now())
    assert wrong(device.send("m-2", "Hello."), 409)
    assert device.send("m-1", "Hello.").json()["created"] is False


def test_per_02_a_renamed_device_sends_again_without_a_conflict():
    device = paired("Laptop")
    device.send("m-1", "Hello.")
    grants.allow(device.grant, name="Old laptop", scope=DeviceGrant.Scope.AGENT, runtime="echo", tools=[], now=database_now())
    assert device.send("m-1", "Hello.").json()["created"] is False


def test_a_device_that_replaced_another_sends_again_without_a_second_turn():
    old = paired("Laptop")
    old.send("m-1", "Hello.")
    new = paired("Laptop", replace=old.grant)
    assert new.agent_id != old.agent_id
    assert new.send("m-1", "Hello.").json() == {"accepted": True, "created": False, "message_id": "m-1", "status": "pending"}
    assert wrong(new.send("m-1", "Good bye."), 409)
    newest = paired("Laptop", replace=new.grant)
    assert newest.send("m-1", "Hello.").json()["created"] is False
    assert Message.objects.count() == 1


def test_a_merely_claimed_identity_suppresses_nobodys_mail():
    first = paired("Laptop", identity="a" * 32)
    second = paired("Laptop", identity="a" * 32)
    assert first.send("m-1", "Hello.").json()["created"]
    assert second.send("m-1", "Hello.").json()["created"]
    assert Message.objects.count() == 2


# --- hops --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("header", "hops"), [(None, 0), ("0", 0), ("5", 5), ("16", 16), ("-1", 16), ("many", 16), ("1,2", 16), ("", 16)])
def test_the_chain_goes_on_where_the_sender_was(header, hops):
    device = paired()
    headers = {} if header is None else {"x-suzent-hops": header}
    assert device.send("m-1", "Hello.", **headers).status_code == 202
    assert Message.objects.get().hops == hops


def test_a_chain_that_is_too_long_ends_here():
    assert wrong(paired().send("m-1", "Hello.", **{"x-suzent-hops": "17"}), 422, "hop_limit")
    assert not Message.objects.exists()


def test_what_a_turn_sends_for_a_device_is_one_hop_further():
    office()
    here = planner()
    device = paired(runtime="scripted", tools=["agent_send"])
    device.send("m-1", "Hello.", **{"x-suzent-hops": "4"})
    work = claimed(Message.objects.get())
    tools = tools_of(work)
    tools.call("agent_send", agent_id=here.agent_id, message="From afar.")
    assert Message.objects.get(target=here.agent_id).hops == 5


# --- session, stop, whoami ---------------------------------------------------------------------------------------
def test_the_session_is_empty_and_idle_before_the_first_message():
    device = paired()
    assert device.get("/channels/suzent/session").json() == {
        "agent_id": device.agent_id, "status": "idle", "messages": [], "message_count": 0, "omitted_message_count": 0,
        "transcript_truncated": False,
    }  # fmt: skip


def test_the_session_shows_what_was_said():
    device = paired()
    device.send("m-1", "Hello.")
    delivered(Message.objects.get(), reply="ok: Hello.")
    shown = device.get("/channels/suzent/session").json()
    assert [(line["index"], line["role"], line["text"]) for line in shown["messages"]] == [(1, "user", "Hello."), (2, "assistant", "ok: Hello.")]
    assert all(line["timestamp"].endswith("Z") for line in shown["messages"])
    assert (shown["status"], shown["message_count"]) == ("idle", 2)


def test_the_session_is_bounded():
    device = paired()
    for number in range(3):
        device.send(f"m-{number}", str(number) * 15_000)
        delivered(Message.objects.get(message_id__startswith="remote-", lane__isnull=False))
    shown = device.get("/channels/suzent/session").json()
    assert sum(len(line["text"]) for line in shown["messages"]) <= 20_000
    assert shown["transcript_truncated"]
    assert shown["message_count"] == len(shown["messages"]) + shown["omitted_message_count"] == 6


def test_a_running_session_is_active_and_can_be_stopped():
    device = paired()
    device.send("m-1", "Hello.")
    work = claimed(Message.objects.get())
    assert device.get("/channels/suzent/session").json()["status"] == "active"
    stopped = device.post("/channels/suzent/stop")
    assert (stopped.status_code, stopped.json()) == (200, {"stopped": True, "agent_id": device.agent_id})
    assert turns.was_asked_to_stop(work.turn.pk)


def test_an_idle_session_cannot_be_stopped():
    device = paired()
    assert wrong(device.post("/channels/suzent/stop"), 409, "Peer agent is not active")
    device.send("m-1", "Hello.")
    committed(claimed(Message.objects.get()))
    assert wrong(device.post("/channels/suzent/stop"), 409, "Peer agent is not active")


def test_whoami_tells_the_device_who_it_is():
    device = paired()
    assert device.get("/channels/suzent/whoami").json() == {"ok": True, "peer_id": device.grant.device_id}


# --- boundary ----------------------------------------------------------------------------------------------------
def test_two_devices_do_not_see_each_other():
    first, second = paired("First"), paired("Second")
    first.send("m-1", "Mine.")
    claimed(Message.objects.get())
    assert second.get("/channels/suzent/session").json()["messages"] == []
    assert wrong(second.post("/channels/suzent/stop"), 409)
    assert Turn.objects.get().stop_requested_at is None


def test_the_sessions_of_a_device_use_no_tools_of_ours_by_themselves():
    here = planner()
    device = paired(runtime="scripted")
    device.send("m-1", f"!send {here.agent_id} x")
    with pytest.raises(Exception, match="may not use that tool"):
        tools_of(claimed(Message.objects.get())).call("agent_send", agent_id=here.agent_id, message="x")


def test_ticked_tools_are_all_that_a_device_has():
    here, foreign = planner(), stranger()
    device = paired(runtime="scripted", tools=["agent_send"])
    device.send("m-1", "Hello.")
    tools = tools_of(claimed(Message.objects.get()))
    assert tools.call("agent_send", agent_id=here.agent_id, message="x")["created"]
    with pytest.raises(Exception, match="nothing here by that name"):
        tools.call("agent_send", agent_id=foreign.agent_id, message="x")
    with pytest.raises(Exception, match="may not use that tool"):
        tools.call("agent_read", agent_id=here.agent_id)


def test_a_device_runs_echo_unless_told_otherwise():
    device = paired()
    device.send("m-1", "!say hello")
    session = Session.objects.get(pk=device.agent_id)
    assert (session.runtime, session.kind, session.config, session.project_id) == ("echo", "remote", {"tools": []}, "office")


def test_sec_04_a_narrow_grant_only_reads_and_stays_narrow_when_replaced():
    device = paired()
    DeviceGrant.objects.filter(pk=device.grant.pk).update(scope="read")
    for path in ("inbox", "stop"):
        assert wrong(device.post(f"/channels/suzent/{path}", {"message_id": "m", "content": "c"}), 403)
    assert device.get("/channels/suzent/session").status_code == 200
    again = paired(replace=device.grant)
    assert wrong(again.send("m-1", "Hello."), 403)


def test_a_token_opens_nothing_but_the_channel():
    device = paired()
    for path in ("/channels/suzent/elsewhere", "/channels/telegram/inbox", "/nodes/list", "/nodes/grants/revoke"):
        assert wrong(device.get(path), 403)
        assert wrong(Device().get(path), 401)
    assert device.get("/api/sessions").status_code == 401


def tools_of(work):
    return TurnTools(hold=work.hold, session=work.message.session, turn=work.turn, message_ids=[work.message.message_id])
