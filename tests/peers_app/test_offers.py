"""``peer-offer`` and ``grant-changed``: wire.md 3, 5.2, 5.8."""

from datetime import timedelta

import pytest

from peers_app import grants, pairing, tasks
from peers_app.models import Installation, Peer
from sessions_app.clock import database_now
from sessions_app.models import Lane
from suzent_site.sealed import unseal
from tests.peers_app.far_device import far_device
from tests.peers_app.pairing import Device, paired, wrong
from tests.people import office

pytestmark = pytest.mark.django_db

TOKEN, OTHER = "T" * 43, "U" * 43


def offer(device, base_url="http://b:9", token=TOKEN, **more):
    return device.post("/nodes/peer-offer", {"name": "B", "base_url": base_url, "token": token, **more})


def only_peer():
    return Peer.objects.get()


def is_held(peer):
    return Lane.objects.get(key=peer.lane_key).paused_at is not None


# --- peer-offer --------------------------------------------------------------------------------------------------
def test_an_offer_from_the_address_that_the_operator_saw_is_used_at_once():
    device = paired("B", address="http://b:9")
    answer = offer(device)
    assert (answer.status_code, answer.json()) == (200, {"success": True})
    peer = only_peer()
    assert (peer.state, peer.base_url, peer.token, peer.name, peer.project_id) == ("ready", "http://b:9", TOKEN, "B", "office")
    assert peer.reverse_grant == device.grant
    assert not is_held(peer)


def test_an_offer_from_another_address_waits_for_the_operator():
    device = paired("B", address="http://b:9")
    offer(device, "http://elsewhere:9/")
    peer = only_peer()
    assert (peer.state, peer.base_url, peer.offered_url, unseal(peer.offered_token)) == ("off", "", "http://elsewhere:9", TOKEN)
    assert is_held(peer)
    pairing.resume(peer, now=database_now())
    peer.refresh_from_db()
    assert (peer.state, peer.base_url, peer.token, peer.offered_token) == ("ready", "http://elsewhere:9", TOKEN, "")


def test_a_peer_that_moves_keeps_its_address_until_the_operator_says_so():
    device = paired("B", address="http://b:9")
    offer(device)
    offer(device, "http://elsewhere:9", OTHER)
    peer = only_peer()
    assert (peer.state, peer.base_url, peer.token, peer.offered_url) == ("ready", "http://b:9", TOKEN, "http://elsewhere:9")
    pairing.resume(peer, now=database_now())
    peer.refresh_from_db()
    assert (peer.base_url, peer.token) == ("http://elsewhere:9", OTHER)


def test_a_fresh_token_leaves_a_pause_as_it_is():
    device = paired("B", address="http://b:9")
    offer(device)
    pairing.pause(only_peer(), now=database_now())
    offer(device, token=OTHER)
    peer = only_peer()
    assert (peer.state, peer.token, is_held(peer)) == ("paused", OTHER, True)


def test_a_peer_that_had_revoked_us_is_ready_again_by_its_own_offer():
    device = paired("B", address="http://b:9")
    offer(device)
    Peer.objects.update(state="revoked")
    offer(device, token=OTHER)
    assert (only_peer().state, only_peer().token) == ("ready", OTHER)


def test_an_offer_touches_no_peer_but_the_callers():
    first, second = paired("B", address="http://b:9"), paired("B", address="http://b:9", identity="a" * 32)
    offer(first)
    offer(second, token=OTHER, name="B")
    kept, other = Peer.objects.get(reverse_grant=first.grant), Peer.objects.get(reverse_grant=second.grant)
    assert (kept.state, kept.base_url, kept.token) == ("ready", "http://b:9", TOKEN)
    assert (other.state, other.base_url, other.offered_url) == ("off", "", "http://b:9")
    with pytest.raises(pairing.AlreadyPaired):
        pairing.resume(other, now=database_now())


def test_a_token_that_came_later_makes_an_earlier_offer_void():
    device = paired("B", address="http://b:9")
    offer(device, "http://elsewhere:9", OTHER)
    offer(device)
    pairing.pause(only_peer(), now=database_now())
    pairing.resume(only_peer(), now=database_now())
    peer = only_peer()
    assert (peer.state, peer.base_url, peer.token) == ("ready", "http://b:9", TOKEN)


def test_a_device_that_replaced_another_is_the_same_peer():
    old = paired("B", address="http://b:9")
    offer(old)
    new = paired("B", address="http://b:9", replace=old.grant)
    offer(new, token=OTHER)
    assert (only_peer().reverse_grant, only_peer().token) == (new.grant, OTHER)
    pairing.remove(only_peer(), now=database_now())
    assert wrong(new.get("/channels/suzent/whoami"), 401)


@pytest.mark.parametrize(
    "body",
    [
        {}, {"base_url": "http://b:9"}, {"token": TOKEN}, {"base_url": "", "token": TOKEN}, {"base_url": "http://b:9", "token": " "},
        {"base_url": 1, "token": TOKEN}, {"base_url": "http://b:9", "token": ["x"]}, {"base_url": "http://b:9", "token": "a\r\nX: y"},
        {"base_url": "http://b:9", "token": "é"}, {"base_url": "http://b:9", "token": "t" * 1000}, {"base_url": "file:///x", "token": TOKEN},
        {"base_url": "http://u@b:9", "token": TOKEN}, {"base_url": "http://b:9/x", "token": TOKEN}, {"base_url": "http://b\r\n:9", "token": TOKEN},
    ],
    ids=range(14),
)  # fmt: skip
def test_an_offer_without_a_field_or_with_a_bad_one_is_refused(body):
    assert wrong(paired().post("/nodes/peer-offer", body), 400)
    assert not Peer.objects.exists()


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff"])
def test_an_unreadable_offer_is_refused(raw):
    assert wrong(paired().post("/nodes/peer-offer", raw=raw), 400)


# --- grant-changed -----------------------------------------------------------------------------------------------
def hint():
    return Device().post("/channels/suzent/grant-changed", {})


@pytest.fixture
def far():
    with far_device() as device:
        device.approves()
        yield device


def ready(far):
    pairing.ask(far.url, project=office(), now=database_now())
    tasks.poll()


def test_a_hint_without_peers_removes_nobody():
    assert (hint().status_code, hint().json()) == (200, {"ok": True, "removed": 0})


@pytest.mark.parametrize("answer", [(401, {"error": "x"}), (403, {"error": "x"}), (200, {"ok": True, "peer_id": None})])
def test_a_peer_that_does_not_know_our_token_is_shown_as_revoked_and_kept(far, answer):
    ready(far)
    far.answers["/channels/suzent/whoami"] = answer
    assert hint().json() == {"ok": True, "removed": 1}
    peer = only_peer()
    assert (peer.state, is_held(peer), peer.base_url) == ("revoked", True, far.url)


@pytest.mark.parametrize("answer", [(200, {"ok": True, "peer_id": "x"}), (404, {"error": "x"}), (500, b"<html>"), (302, {}), (200, b"\xff")])
def test_every_other_answer_revokes_nobody(far, answer):
    ready(far)
    far.answers["/channels/suzent/whoami"] = answer
    assert hint().json()["removed"] == 0
    assert only_peer().state == "ready"


def test_who_cannot_be_reached_has_not_revoked_us():
    with far_device() as far:
        far.approves()
        ready(far)
    assert hint().json()["removed"] == 0
    assert only_peer().state == "ready"


def test_hints_start_one_round_in_ten_seconds(far):
    ready(far)
    for _ in range(5):
        hint()
    assert rounds_at(far) == 1
    Installation.objects.update(checked_at=database_now() - timedelta(seconds=11))
    hint()
    assert rounds_at(far) == 2


def rounds_at(far):
    return sum(request.startswith(b"GET /channels/suzent/whoami ") for request in far.served.heard)


def test_the_body_of_a_hint_is_of_no_interest():
    for raw in (b"", b"{", b"\xff", b"[1]"):
        assert Device().post("/channels/suzent/grant-changed", raw=raw).status_code == 200


def test_a_device_is_told_when_its_grant_ends(far):
    device = paired("B", address=far.url)
    grants.revoke(device.grant, now=database_now())
    tasks.hint(device.grant.pk)
    assert far.bodies("/channels/suzent/grant-changed") == [{}]


def test_a_device_that_cannot_be_told_harms_nobody():
    with far_device() as far:
        pass
    tasks.hint(paired("B", address=far.url).grant.pk)
    tasks.hint(paired("B").grant.pk)
    tasks.hint("0" * 12)
