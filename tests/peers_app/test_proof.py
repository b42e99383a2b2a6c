"""Proof before the token travels (wire.md 5.7): a machine that merely took over an address gets neither token nor mail."""

import json

import pytest

from inbox_app.models import Message
from peers_app import calls, checks, lines, probe, proof
from peers_app.lines import NotProven
from peers_app.models import Peer
from sessions_app.clock import database_now
from suzent_site.outbound import Timeouts
from suzent_site.sealed import digest_of
from tests.peers_app.pairing import Device, paired
from tests.peers_app.peer_091 import TOKEN, Peer091, as_json, peer_091
from tests.peers_app.test_delivery import now_again, pair, send, try_once
from tests.wire import wire

pytestmark = pytest.mark.django_db

CONTENT = "nobody else is to read this"


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr("peers_app.client.DELIVERY", Timeouts(1, 0.4, 0.8))
    lines._silent_until.clear()


class Proving(Peer091):
    """A device of ours: it can prove that it holds the grant with its token."""

    def behave(self, connection, request):
        head, _, body = request.partition(b"\r\n\r\n")
        if not head.startswith(b"POST /channels/suzent/proof "):
            super().behave(connection, request)
            return
        asked, digest = json.loads(body), digest_of(self.token)
        known = asked["handle"] == proof.handle(digest)
        connection.sendall(as_json(200, {"proof": proof.made(digest, asked["nonce"])}) if known else as_json(404, {"error": "Unknown grant"}))


def lying(connection, request):
    """It answers everything, and proofs with a number of its own."""
    connection.sendall(as_json(200, {"proof": "0" * 64, "ok": True, "peer_id": "0" * 12, "success": True, "stopped": True}))


def serve(device, **options):
    return wire(device.behave, **options)


def heard(served):
    return b"".join(served.heard)


def posts_of(served, path):
    return [request for request in served.heard if request.startswith(f"POST /channels/suzent/{path} ".encode())]


def test_a_peer_that_proves_itself_is_verified_and_its_proof_costs_no_token(town):
    device = Proving()
    with serve(device) as device.served:
        peer = pair(town, device.url)
        message = send(town, peer)
        try_once()
        assert (now_again(message).status, Peer.objects.get().verified) == ("delivered", True)
        [demand] = posts_of(device.served, "proof")
    assert TOKEN.encode() not in demand and digest_of(TOKEN).encode() not in demand


def test_each_proof_is_of_a_fresh_number(town):
    device = Proving()
    with serve(device) as device.served:
        peer = pair(town, device.url)
        for content in ("1", "2"):
            send(town, peer, content)
            try_once()
        asked = [json.loads(request.partition(b"\r\n\r\n")[2]) for request in posts_of(device.served, "proof")]
    assert (len(asked), len({one["nonce"] for one in asked}), len({one["handle"] for one in asked})) == (2, 2, 1)


@pytest.mark.parametrize("verified", [True, False])
def test_per_04_a_machine_that_proves_wrongly_gets_neither_token_nor_mail(town, verified):
    with wire(lying) as machine:
        message = send(town, pair(town, machine.url, verified=verified), CONTENT)
        try_once()
        assert TOKEN.encode() not in heard(machine) and CONTENT.encode() not in heard(machine)
    message = now_again(message)
    assert (message.status, message.maybe_delivered, Peer.objects.get().state) == ("pending", False, "offline")
    assert "did not prove" in message.last_error


def test_per_04_a_verified_peer_is_never_spoken_to_unproved_again(town):
    """A device of version 0.9.1, or of ours with another grant, stands at its address now."""
    for machine in (Peer091(token="other" * 9), Proving(token="other" * 9)):
        with serve(machine) as machine.served:
            peer = pair(town, machine.url, verified=True, name=machine.url)
            message = send(town, peer, CONTENT)
            try_once()
            assert town.planner.api.tool("agent_read", agent_id=peer.agent_id).status_code == 503
            assert town.planner.api.tool("agent_stop", agent_id=peer.agent_id).status_code == 503
            probe.probe()
            assert checks.after_hint(now=database_now()) == 0
            with pytest.raises(NotProven):
                lines.to(peer)
            assert TOKEN.encode() not in heard(machine.served) and CONTENT.encode() not in heard(machine.served)
        assert (now_again(message).status, now_again(message).maybe_delivered) == ("pending", False)


def test_an_offer_goes_to_a_verified_peer_only_after_its_proof(town):
    with wire(lying) as machine, pytest.raises(NotProven):
        calls.offer(lines.to(pair(town, machine.url, verified=True)), name="us", our_url="http://us:9", our_token="o" * 43)
    assert b"o" * 43 not in heard(machine)


def test_a_device_of_0_9_1_stays_unverified_and_works_and_is_asked_now_and_then_only(town):
    with peer_091() as there:
        peer = pair(town, there.url)
        for content in ("1", "2", "3"):
            send(town, peer, content)
            try_once()
        assert (list(there.stored.values()), Peer.objects.get().verified) == (["1", "2", "3"], False)
        assert len(posts_of(there.served, "proof")) == 1
    assert Message.objects.delivered().count() == 3


def test_a_silent_machine_at_a_verified_address_has_certainly_not_had_the_mail(town):
    with wire(lambda connection, request: None) as there:
        message = send(town, pair(town, there.url, verified=True))
        try_once()
    assert not now_again(message).maybe_delivered


# --- the other side --------------------------------------------------------------------------------------------
def demand(device, **changed):
    return device.post("/channels/suzent/proof", {"handle": proof.handle(digest_of(device.token)), "nonce": "1" * 64, **changed})


def test_we_prove_that_we_hold_a_grant_to_anybody_who_knows_its_handle():
    device = paired()
    anybody = Device(token=device.token)
    anybody._headers = dict
    got = demand(anybody)
    assert (got.status_code, got.json()) == (200, {"proof": proof.made(digest_of(device.token), "1" * 64)})


def test_we_prove_it_also_of_a_grant_that_is_paused_or_revoked_and_its_token_says_the_rest():
    device = paired()
    type(device.grant).objects.update(state="paused")
    assert demand(device).status_code == 200
    assert device.get("/channels/suzent/whoami").status_code == 401


@pytest.mark.parametrize(
    ("changed", "status"),
    [({"handle": "0" * 64}, 404), ({"handle": "0" * 63}, 400), ({"nonce": "x" * 64}, 400), ({"nonce": 5}, 400), ({"nonce": None}, 400), ({"nonce": "1" * 64 + "\n"}, 400)],
)
def test_what_is_no_demand_is_refused(changed, status):
    got = demand(paired(), **changed)
    assert (got.status_code, set(got.json())) == (status, {"error"})
