"""Mail to peers, over real sockets: what acknowledges, what fails, what waits, and how long."""

import random
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import OperationalError, connection
from django.utils import timezone

from inbox_app import transitions
from inbox_app.deliveries import Judged, Parcel
from inbox_app.models import Attempt, Message
from peers_app import lines, probe, transport
from peers_app.models import Peer
from peers_app.standing import move
from sessions_app import lanes
from sessions_app.actions import archive_session
from sessions_app.clock import database_now
from sessions_app.models import Lane
from suzent_site.outbound import Timeouts
from tests.peers_app.peer_091 import TOKEN, Peer091, accepted, as_json, peer_091
from tests.wire import answer, wire

pytestmark = pytest.mark.django_db

QUICK = Timeouts(connect=1, read=0.4, total=0.8)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("peers_app.client.DELIVERY", QUICK)
    monkeypatch.setattr("peers_app.proof.BRIEF", QUICK)
    lines._silent_until.clear()


@pytest.fixture
def there():
    with peer_091() as device:
        yield device


def pair(town, url, *, name="B", token=TOKEN, state="ready", **about):
    peer = Peer(project=town.project, name=name, base_url=url, state=state, created_at=timezone.now(), **about)
    peer.token = token
    peer.save()
    lanes.ensure(peer.lane_key)
    return peer


def send(town, peer, content="hello", **about):
    sent = town.planner.api.send(peer.agent_id, content, **about)
    assert sent.status_code == 202, sent.json()
    return Message.objects.get(message_id=sent.json()["message_id"])


def claim(*, now=None):
    return [item for item in transitions.claim("tests", now=now or database_now(), limit=20) if isinstance(item, Parcel | Judged)]


def try_once(*, now=None):
    """What is due is tried, once each, and settled; how the tries ended."""
    ends = []
    for item in claim(now=now):
        if isinstance(item, Judged):
            transitions.fail(item, now=database_now())
            continue
        ended = transport.PeerTransport().deliver(item)
        ends.append(ended)
        if ended.acknowledgement:
            transitions.acknowledge([ended.acknowledgement], now=database_now())
        if ended.setback:
            transitions.release(item, ended.setback, now=database_now())
        if ended.refusal:
            transitions.fail(Judged(item.hold, item.message, ended.refusal), now=database_now(), answered=True)
    return ends


def now_again(message):
    return Message.objects.get(pk=message.pk)


def hurry(peer):
    """Its backoff is over."""
    Attempt.objects.update(finished_at=timezone.now() - timedelta(days=1))
    Lane.objects.filter(key=peer.lane_key).update(due_at=timezone.now())


def lane_of(peer):
    return Lane.objects.get(key=peer.lane_key)


# --- what acknowledges -----------------------------------------------------------------------------------------
def test_a_checked_202_delivers_and_what_the_peer_said_is_shown(town, there):
    peer = pair(town, there.url)
    message = send(town, peer, "  Grüße 👩‍👧 ", message_id="m-1")
    try_once()
    shown = town.planner.api.get("/api/messages/m-1").json()
    assert (shown["status"], shown["peer_answer"], shown["maybe_delivered"]) == ("delivered", {"status": "pending", "created": True}, False)
    assert there.stored == {"m-1": message.content.strip()}
    head = there.served.heard[-1].partition(b"\r\n\r\n")[0].decode().lower()
    assert head.startswith("post /channels/suzent/inbox http/1.1") and f"authorization: bearer {TOKEN}" in head


def test_a_status_that_is_none_decides_nothing(town, there):
    message = send(town, pair(town, there.url), message_id="m-1")
    there.inbox = [accepted("m-1", status=["delivered"], created=[])]
    try_once()
    assert (now_again(message).status, now_again(message).peer_answer) == ("delivered", {"status": "pending", "created": True})


BROKEN = {
    "202 {}": as_json(202, {}),
    "202 html": answer(202, b"<html>hello</html>", "Content-Type: text/html"),
    "202 another id": accepted("another"),
    "202 not accepted": accepted("m-1", accepted=False),
    "202 accepted as text": accepted("m-1", accepted="true"),
    "202 a list": as_json(202, ["accepted"]),
    "202 not UTF-8": answer(202, b"\xff\xfe"),
    "202 deep": answer(202, b"[" * 50_000),
    "200": accepted("m-1").replace(b" 202 ", b" 200 ", 1),
    "201": accepted("m-1").replace(b" 202 ", b" 201 ", 1),
    "204": b"HTTP/1.1 204 No Content\r\n\r\n",
    "cut mid-body": answer(202, b'{"accepted": true, "mess', length=90),
    "cut mid-head": b"HTTP/1.1 202 Acc",
    "huge": answer(202, b'{"accepted": true, "message_id": "m-1", "x": "' + b"x" * 200_000 + b'"}'),
    "500": as_json(500, {"error": "oops"}),
    "502 html": answer(502, b"<html>bad gateway</html>"),
    "no HTTP": b"SSH-2.0-OpenSSH_9.6\r\n",
    "nothing": b"",
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_lse_10_whatever_is_no_acknowledgement_delivers_nothing_and_may_have_arrived(town, there, broken):
    peer = pair(town, there.url)
    message = send(town, peer, message_id="m-1")
    there.inbox = [broken]
    try_once()
    message = now_again(message)
    assert (message.status, message.attempts, message.maybe_delivered) == ("pending", 1, True)
    assert message.last_error.startswith("the peer: ")
    assert lane_of(peer).failures == 1
    assert Peer.objects.get().state == "offline"


NOT_THERE = {
    "404": answer(404, b"<html>not found</html>"), "404 JSON": as_json(404, {"error": "Not found"}), "405": as_json(405, {"error": "x"}),
    "415": as_json(415, {"error": "x"}), "400 html": answer(400, b"<html>bad request</html>"), "413 html": answer(413, b"<html>nginx</html>"),
    "422 other JSON": as_json(422, {"detail": [{"loc": ["body"]}]}),
}  # fmt: skip


@pytest.mark.parametrize("other", NOT_THERE.values(), ids=NOT_THERE.keys())
def test_who_is_not_our_peer_just_now_is_tried_again_and_has_taken_nothing(town, there, other):
    message = send(town, pair(town, there.url))
    there.inbox = [other]
    try_once()
    message = now_again(message)
    assert (message.status, message.attempts, message.maybe_delivered) == ("pending", 1, False)


def test_lse_10_each_ends_within_its_bound_with_the_reason_stored(town, there):
    peer = pair(town, there.url)
    message = send(town, peer)
    there.inbox = [as_json(202, {})] * 48
    for _ in range(48):
        hurry(peer)
        try_once()
    message = now_again(message)
    assert (message.status, message.reason, message.attempts, len(there.posts)) == ("failed", "exhausted", 48, 48)
    assert "202" in message.last_error
    notice = Message.objects.get(kind="delivery_failure")
    assert "may have arrived" in notice.content and notice.session_id == "planner"


def test_a_redirect_is_not_followed_and_its_target_sees_nothing(town):
    with peer_091() as elsewhere:
        with peer_091(lambda connection, _: connection.sendall(answer(307, b"", f"Location: {elsewhere.url}/channels/suzent/inbox"))) as there:
            message = send(town, pair(town, there.url))
            try_once()
        assert (elsewhere.served.heard, now_again(message).status) == ([], "pending")


# --- what is permanent -----------------------------------------------------------------------------------------
@pytest.mark.parametrize("status", [400, 409, 413, 422])
def test_a_refusal_with_an_error_is_final_and_told_at_once(town, there, status):
    peer = pair(town, there.url)
    message = send(town, peer)
    there.inbox = [as_json(status, {"error": "no\x00t\u202e this"})]
    try_once()
    message = now_again(message)
    assert (message.status, message.reason) == ("failed", "rejected")
    assert message.last_error.startswith(f"the peer: it answered {status}: no t")
    assert "was not delivered" in Message.objects.get(kind="delivery_failure").content
    assert lane_of(peer).failures == 0


def test_per_11_a_peer_with_a_smaller_limit_is_asked_once(town, there):
    message = send(town, pair(town, there.url), "x" * 20_000)
    there.inbox = [as_json(413, {"error": "content is longer than 10000 characters"})]
    try_once()
    assert (now_again(message).reason, len(there.posts)) == ("rejected", 1)
    assert "10000 characters" in Message.objects.get(kind="delivery_failure").content


@pytest.mark.parametrize("character", ["x", "é", "中", "👍"])
def test_per_11_what_is_too_long_is_refused_at_send(town, there, character):
    peer = pair(town, there.url)
    assert town.planner.api.send(peer.agent_id, character * 20_001).status_code == 400
    message = send(town, peer, character * 20_000)
    try_once()
    assert (now_again(message).status, list(there.stored.values())) == ("delivered", [character * 20_000])


def test_lop_03_hops_travel_and_a_chain_that_is_too_long_there_is_told(town, there, settings):
    peer = pair(town, there.url)
    message = send(town, peer)
    Message.objects.filter(pk=message.pk).update(hops=7)
    there.inbox = [as_json(422, {"error": "hop_limit"})]
    try_once()
    assert (there.hops, now_again(message).reason) == (["7"], "hop_limit")


# --- 401, 429 and their like -----------------------------------------------------------------------------------
@pytest.mark.parametrize("status", [401, 403])
def test_per_09_a_token_that_is_not_taken_holds_the_queue_and_costs_no_try(town, there, status):
    peer = pair(town, there.url)
    waiting = [send(town, peer, str(number)) for number in range(3)]
    there.inbox = [as_json(status, {"error": "Unauthorized"})]
    try_once()
    assert (try_once(), len(there.posts)) == ([], 1)
    message = now_again(waiting[0])
    assert (message.status, message.attempts, Peer.objects.get().state) == ("pending", 0, "revoked")
    assert "does not take our token" in town.planner.api.get(f"/api/messages/{message.message_id}").json()["waiting_for"]
    probe.probe()
    for _ in range(3):
        try_once()
    assert (list(there.stored.values()), Peer.objects.get().state) == (["0", "1", "2"], "ready")


def test_a_probe_that_is_turned_away_changes_nothing(town, there):
    peer = pair(town, there.url, token="w" * 43, state="revoked")
    probe.probe()
    assert Peer.objects.get(pk=peer.pk).state == "revoked"


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(("asks", "least", "most"), [("30", 30, 40), ("0", 1, 5), ("99999999", 14_000, 17_500)])
def test_a_busy_peer_is_given_the_time_it_asks_for_and_it_costs_no_try(town, there, status, asks, least, most):
    peer = pair(town, there.url)
    message = send(town, peer)
    there.inbox = [as_json(status, {"error": "mailbox full"}, f"Retry-After: {asks}")]
    before = timezone.now()
    try_once()
    message = now_again(message)
    assert (message.status, message.attempts, message.deferrals) == ("pending", 0, 1)
    assert timedelta(seconds=least) <= lane_of(peer).due_at - before <= timedelta(seconds=most)
    assert Peer.objects.get().state == "ready"


def test_a_busy_peer_may_name_a_date_and_one_that_names_nothing_is_backed_off_from(town, there):
    peer = pair(town, there.url)
    message = send(town, peer)
    later = timezone.now() + timedelta(seconds=60)
    there.inbox = [as_json(429, {}, f"Retry-After: {later:%a, %d %b %Y %H:%M:%S} GMT"), as_json(429, {}, "Retry-After: soon")]
    try_once()
    assert lane_of(peer).due_at > timezone.now() + timedelta(seconds=50)
    hurry(peer)
    try_once()
    assert now_again(message).attempts == 1


# --- backing off -----------------------------------------------------------------------------------------------
def test_the_lane_waits_2_to_the_n_up_to_the_cap(town, there, settings):
    settings.SUZENT_PEER_BACKOFF_CAP = 60
    peer = pair(town, there.url)
    send(town, peer)
    waits = []
    for _ in range(8):
        there.inbox = [b""]
        hurry(peer)
        before = timezone.now()
        try_once()
        waits.append((lane_of(peer).due_at - before).total_seconds())
    for wait, whole in zip(waits, [2, 4, 8, 16, 32, 60, 60, 60], strict=True):
        assert whole * 0.8 <= wait <= whole * 1.2 + 2


def test_lse_13_those_that_failed_together_do_not_return_together():
    """200 lanes that failed in the same instant: after 6 failures no second holds more than 10 % of them."""
    transport._rng.seed(7)
    now = timezone.now()
    spread = {}
    for failures in (0, 2, 5):
        due = [transport.Patience(failures, None).setback("x", maybe=False, now=now).retry_at for _ in range(200)]
        seconds = [int((moment - now).total_seconds() * 10) for moment in due]
        spread[failures] = max(due) - min(due)
        if failures == 5:
            by_second = [int((moment - now).total_seconds()) for moment in due]
            assert max(by_second.count(second) for second in by_second) <= 20
        assert len(set(seconds)) > 4
    assert spread[0] < spread[2] < spread[5]
    random.seed()


def test_lse_13_many_rows_to_one_dead_peer_are_one_try(town):
    peer = pair(town, "http://127.0.0.1:9")
    for number in range(30):
        send(town, peer, str(number))
    assert len(try_once()) == 1
    assert (try_once(), Attempt.objects.count()) == ([], 1)


def test_a_lost_answer_comes_again_under_the_same_id_and_one_mail_is_there(town, there):
    """PER-01, PER-02."""
    peer = pair(town, there.url)
    message = send(town, peer, message_id="m-1")
    there.inbox = [there.lose]
    try_once()
    Peer.objects.filter(pk=peer.pk).update(name="renamed")
    hurry(peer)
    try_once()
    message = now_again(message)
    assert (message.status, message.peer_answer["created"], there.posts, list(there.stored)) == ("delivered", False, ["m-1", "m-1"], ["m-1"])


def test_adm_03_a_message_that_failed_after_the_peer_had_it_is_redelivered_without_a_second_one(town, there):
    peer = pair(town, there.url)
    message = send(town, peer)
    there.inbox = [there.lose] * 48
    for _ in range(48):
        hurry(peer)
        try_once()
    assert now_again(message).status == "failed"
    assert town.planner.api.post(f"/api/messages/{message.message_id}/retry").status_code == 202
    try_once()
    assert (now_again(message).status, len(there.stored)) == ("delivered", 1)


def test_silence_does_not_hold_a_thread_for_long(town):
    with wire(lambda connection, request: there.released.wait(20)) as there:
        message = send(town, pair(town, there.url))
        try_once()
    assert "within 0.4 seconds" in now_again(message).last_error


# --- signs of life ---------------------------------------------------------------------------------------------
def test_per_12_a_peer_that_is_back_gets_its_mail_at_once(town):
    with peer_091() as there:
        url = there.url
    peer = pair(town, url)
    message = send(town, peer)
    try_once()
    Lane.objects.filter(key=peer.lane_key).update(failures=20, due_at=timezone.now() + timedelta(hours=4))
    probe.probe()
    assert (try_once(), Peer.objects.get().state) == ([], "offline")
    assert "peer away, next try in" in town.planner.api.get(f"/api/messages/{message.message_id}").json()["waiting_for"]
    with back_at(url) as there:
        probe.probe()
        try_once()
        assert (now_again(message).status, list(there.stored.values())) == ("delivered", ["hello"])
    assert (Peer.objects.get().state, lane_of(peer).failures) == ("ready", 0)


@contextmanager
def back_at(url):
    """The same device at the same address again."""
    device = Peer091()
    with wire(device.behave, port=int(url.rpartition(":")[2])) as device.served:
        yield device


def test_a_try_before_its_time_costs_nothing_and_keeps_the_time_of_the_next(town, there):
    peer = pair(town, there.url)
    message = send(town, peer)
    there.inbox = [b"", b"", b""]
    try_once()
    Lane.objects.filter(key=peer.lane_key).update(failures=8, due_at=timezone.now() + timedelta(seconds=256))
    for _ in range(2):
        probe.probe()
        try_once()
    message = now_again(message)
    assert (message.attempts, len(there.posts), lane_of(peer).failures) == (1, 3, 8)
    assert lane_of(peer).due_at > timezone.now() + timedelta(seconds=200)


# --- holding ---------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("state", ["paused", "revoked", "off"])
def test_a_peer_that_is_not_in_use_keeps_its_mail_until_it_is(town, there, state):
    peer = pair(town, there.url)
    move(peer, to=Peer.State(state), among=[Peer.State.READY], now=timezone.now())
    message = send(town, peer)
    assert (try_once(), there.posts) == ([], [])
    move(peer, to=Peer.State.READY, among=[Peer.State(state)], now=timezone.now())
    try_once()
    assert now_again(message).status == "delivered"


def test_the_mail_of_a_peer_that_was_removed_fails_as_target_gone(town, there):
    peer = pair(town, there.url)
    message = send(town, peer)
    peer.delete()
    try_once()
    assert (now_again(message).reason, there.posts) == ("target_gone", [])


def test_mail_of_a_sender_that_is_archived_still_goes(town, there):
    message = send(town, pair(town, there.url))
    archive_session(town.planner.session, now=timezone.now())
    try_once()
    assert now_again(message).status == "delivered"


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(("error", "charged"), [(OperationalError("gone"), 0), (RuntimeError("a bug"), 1)], ids=["database", "bug"])
def test_a_database_that_goes_away_under_a_try_costs_nothing_and_a_bug_is_charged(town, there, monkeypatch, error, charged):
    peer = pair(town, there.url)
    message = send(town, peer)
    with monkeypatch.context() as broken:
        broken.setattr("suzent_site.outbound.call", raising(error))
        try_once()
    assert (now_again(message).status, now_again(message).attempts) == ("pending", charged)
    hurry(peer)
    try_once()
    assert now_again(message).status == "delivered"


def raising(error):
    def call(*args, **kwargs):
        raise error

    return call


# --- secrets ---------------------------------------------------------------------------------------------------
def test_per_19_a_peer_that_repeats_our_token_puts_it_into_no_row(town, there):
    peer = pair(town, there.url)
    send(town, peer)
    there.inbox = [as_json(409, {"error": f"Bearer {TOKEN} is odd"})]
    try_once()
    assert not [table for table in ("agent_inbox_messages", "inbox_app_attempt", "peers_app_peer") if TOKEN in dumped(table)]


def dumped(table):
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT * FROM {table}")
        return repr(cursor.fetchall())


def test_per_04_a_machine_at_the_address_that_does_not_know_the_token_gets_the_mail_held(town):
    with peer_091(token="other" * 9) as stranger:
        message = send(town, pair(town, stranger.url))
        try_once()
        assert (try_once(), stranger.stored) == ([], {})
        assert [request.split(b" ")[1] for request in stranger.served.heard] == [b"/channels/suzent/proof", b"/channels/suzent/inbox"]
    assert now_again(message).status == "pending"
