"""Pairing, asking half: a request there, what becomes of it, and what the operator does with a peer."""

from datetime import timedelta

import pytest

from peers_app import grants, installation, pairing, tasks
from peers_app.calls import NotAPeer, PeerRefused
from peers_app.models import DeviceGrant, Peer
from peers_app.pairing import AlreadyPaired, NoAddress, NotPossible
from sessions_app.clock import database_now
from sessions_app.models import Lane
from suzent_site.addresses import AddressRefused
from suzent_site.errors import Invalid
from suzent_site.outbound import Unreachable
from tests.peers_app.far_device import IDENTITY, TOKEN, far_device
from tests.peers_app.pairing import paired
from tests.people import office

pytestmark = pytest.mark.django_db


@pytest.fixture
def far():
    with far_device() as device:
        yield device


def ask(url):
    return pairing.ask(url, project=office(), now=database_now())


def polled(peer):
    tasks.poll()
    peer.refresh_from_db()
    return peer


def is_held(peer):
    return Lane.objects.get(key=peer.lane_key).paused_at is not None


# --- asking ------------------------------------------------------------------------------------------------------
def test_asking_makes_a_peer_that_waits_for_the_answer(far):
    peer = ask(far.url)
    assert (peer.state, peer.request_id, peer.base_url, peer.project_id) == ("asking", "r" * 22, far.url, "office")
    assert is_held(peer)
    [told] = far.bodies("/nodes/grant-request")
    assert told["controller_identity"] == installation.node_identity()
    assert told["controller_addr"].startswith("http://127.0.0.1:")
    assert polled(peer).state == "asking"


def test_the_token_of_an_approved_request_is_sealed_and_the_mail_goes_out(far):
    peer = ask(far.url)
    far.approves()
    polled(peer)
    assert (peer.state, peer.token, peer.hint, peer.node_identity, peer.request_id) == ("ready", TOKEN, "TTTTTT…TTTT", IDENTITY, "")
    assert TOKEN not in str(vars(Peer.objects.get()))
    assert not is_held(peer)


def test_a_denied_request_ends_the_asking(far):
    peer = ask(far.url)
    far.answers["/nodes/grant-status/"] = 200, {"status": "denied"}
    assert (polled(peer).state, peer.last_error, is_held(peer)) == ("off", "The operator there denied it.", True)


def test_a_request_that_is_gone_there_ends_the_asking(far):
    peer = ask(far.url)
    far.answers["/nodes/grant-status/"] = 404, {"error": "Unknown or expired request"}
    assert polled(peer).state == "off"


@pytest.mark.parametrize(
    "odd",
    [
        (404, b"<html>"), (500, {"error": "x"}), (302, {"status": "approved", "token": TOKEN}), (200, b"\xff"), (200, []), (200, {"status": "maybe"}),
        (200, {"status": "approved"}), (200, {"status": "approved", "token": ""}), (200, {"status": "approved", "token": "a\r\nX: y"}),
        (200, {"status": "approved", "token": "é"}), (200, b"x" * 100_000), (200, {"status": "approved", "token": "t" * 1000}),
        (200, {"status": ["approved"]}), (200, {"status": {}}),
    ],
    ids=range(14),
)  # fmt: skip
def test_an_answer_that_is_none_of_the_protocol_is_asked_for_again(far, odd):
    peer = ask(far.url)
    far.answers["/nodes/grant-status/"] = odd
    assert (polled(peer).state, bool(peer.last_error)) == ("asking", True)
    far.approves()
    assert polled(peer).state == "ready"


def test_a_request_that_nobody_answers_expires(far):
    peer = ask(far.url)
    Peer.objects.update(expires_at=database_now())
    assert (polled(peer).state, peer.last_error) == ("off", "Nobody there answered in time.")


def test_a_device_that_is_away_while_we_ask_is_asked_again_until_it_expires():
    with far_device() as far:
        peer = ask(far.url)
    assert polled(peer).state == "asking"
    assert "connection" in peer.last_error
    Peer.objects.update(expires_at=database_now())
    assert polled(peer).state == "off"


def test_the_supervisor_has_the_answer_fetched_while_we_ask(far, monkeypatch):
    queued = []
    monkeypatch.setattr(tasks, "async_task", lambda name, **_: queued.append(name))
    tasks.see_to_answers(now=database_now())
    assert queued == []
    ask(far.url)
    tasks.see_to_answers(now=database_now())
    tasks.see_to_answers(now=database_now())
    assert queued == ["peers_app.tasks.poll"]


def test_per_27_one_address_is_one_peer_however_it_is_spelled(far):
    peer = ask(far.url)
    port = far.served.port
    for spelling in (f"{far.url}/", f"HTTP://127.0.0.1:{port}", f"127.0.0.1:{port}", f"http://127.0.0.1:0{port}", f"ws://127.0.0.1:{port}/"):
        assert ask(spelling).pk == peer.pk
    assert len(far.bodies("/nodes/grant-request")) == 1
    far.approves()
    polled(peer)
    with pytest.raises(AlreadyPaired):
        ask(far.url)


@pytest.mark.parametrize("url", ["http://h:9/x/..", "http://u@h:9", "http://h:9#f", "http://h?q", "file:///x", "", "http://h\r\nX: y"])
def test_per_27_what_is_no_plain_address_is_refused_by_name(url):
    with pytest.raises(Invalid, match="URL"):
        ask(url)


@pytest.mark.parametrize("url", ["http://169.254.169.254", "http://[::ffff:169.254.169.254]", "http://0.0.0.0:9"])
def test_per_17_not_even_an_operator_has_metadata_asked(url):
    with pytest.raises(AddressRefused):
        ask(url)


def test_per_17_we_do_not_ask_ourselves(settings):
    with pytest.raises(AddressRefused):
        ask(f"http://localhost:{settings.SUZENT_PORT}")
    assert not Peer.objects.exists()


def test_what_the_device_there_refuses_is_told():
    with far_device(**{"/nodes/grant-request": (429, {"error": "Too many\nrequests"})}) as far, pytest.raises(PeerRefused, match="429 Too many requests"):
        ask(far.url)
    with far_device(**{"/nodes/grant-request": (200, b"<html>")}) as far, pytest.raises(NotAPeer):
        ask(far.url)
    with pytest.raises(Unreachable):
        ask(far.url)
    assert not Peer.objects.exists()


def test_a_peer_that_was_off_is_asked_again_and_stays_the_same_peer(far):
    peer = ask(far.url)
    far.answers["/nodes/grant-status/"] = 200, {"status": "denied"}
    polled(peer)
    assert ask(far.url).pk == peer.pk
    far.approves()
    assert polled(peer).state == "ready"


def test_per_04_another_machine_at_the_address_is_another_peer(far):
    peer = ready(far)
    Peer.objects.filter(pk=peer.pk).update(state="revoked")
    ask(far.url)
    far.approves(token="U" * 43, identity="c" * 32)
    polled(peer)
    assert (peer.state, peer.token, is_held(peer)) == ("off", TOKEN, True)
    other = Peer.objects.exclude(pk=peer.pk).get()
    assert (other.state, other.token, other.node_identity) == ("ready", "U" * 43, "c" * 32)


# --- what the operator does --------------------------------------------------------------------------------------
def ready(far):
    peer = ask(far.url)
    far.approves()
    return polled(peer)


def test_a_paused_peer_holds_its_mail_until_it_is_resumed(far):
    peer = ready(far)
    pairing.pause(peer, now=database_now())
    assert is_held(peer)
    with pytest.raises(NotPossible):
        pairing.pause(peer, now=database_now())
    pairing.resume(peer, now=database_now())
    assert not is_held(peer)
    with pytest.raises(NotPossible):
        pairing.resume(peer, now=database_now())


def test_a_peer_without_a_token_cannot_be_resumed(far):
    peer = ask(far.url)
    with pytest.raises(NotPossible, match="ask it again"):
        pairing.resume(peer, now=database_now())


def test_a_removed_peer_is_gone_and_so_is_its_grant(far):
    peer = ready(far)
    grant = pairing.offer(peer, who="olga", now=database_now())
    pairing.remove(Peer.objects.get(), now=database_now())
    assert not Peer.objects.exists()
    assert DeviceGrant.objects.get(pk=grant.pk).state == "revoked"
    assert Lane.objects.get(key=peer.lane_key).paused_at is None


# --- the reverse direction ---------------------------------------------------------------------------------------
def test_a_peer_is_offered_a_grant_whose_token_only_it_has(far):
    peer = ready(far)
    grant = pairing.offer(peer, who="olga", now=database_now())
    [told] = far.bodies("/nodes/peer-offer")
    assert told["base_url"] == installation.our_address(seen_from="127.0.0.1")
    assert (grant.scope, grant.runtime, grant.tools, grant.project_id) == ("agent", "echo", [], "office")
    assert f"Bearer {TOKEN}".encode() in far.served.heard[-1]
    with pytest.raises(NotPossible):
        pairing.offer(Peer.objects.get(), who="olga", now=database_now())


def test_a_peer_whose_grant_has_ended_can_be_offered_another(far):
    peer = ready(far)
    grants.revoke(pairing.offer(peer, who="olga", now=database_now()), now=database_now())
    again = pairing.offer(Peer.objects.get(), who="olga", now=database_now())
    assert (Peer.objects.get().reverse_grant, again.state) == (again, "active")


def test_an_offer_that_does_not_arrive_grants_nothing(far):
    peer = ready(far)
    far.answers["/nodes/peer-offer"] = 400, {"error": "no"}
    with pytest.raises(PeerRefused):
        pairing.offer(peer, who="olga", now=database_now())
    assert not DeviceGrant.objects.exists()


def test_per_28_who_is_not_reachable_from_there_offers_nothing(far, settings):
    peer = ready(far)
    Peer.objects.update(base_url="http://192.0.2.1:9")
    peer.refresh_from_db()
    settings.SUZENT_HOST = "127.0.0.1"
    with pytest.raises(NoAddress):
        pairing.offer(peer, who="olga", now=database_now())


def test_sec_04_a_rotated_token_ends_the_one_before_and_widens_nothing():
    device = paired()
    DeviceGrant.objects.update(scope="read")
    secret = pairing.rotate(device.grant, now=database_now())
    assert device.get("/channels/suzent/whoami").status_code == 401
    device.token = secret
    assert device.get("/channels/suzent/whoami").status_code == 200
    assert device.send("m-1", "Hello.").status_code == 403


def test_the_new_token_of_a_peer_goes_there_by_itself(far):
    peer = ready(far)
    grant = pairing.offer(peer, who="olga", now=database_now())
    assert pairing.rotate(grant, now=database_now()) == ""
    first, second = (told["token"] for told in far.bodies("/nodes/peer-offer"))
    assert first != second
    assert DeviceGrant.objects.get().hint == f"{second[:6]}…{second[-4:]}"


def test_a_revoked_grant_has_no_token_to_rotate():
    device = paired()
    DeviceGrant.objects.update(state="revoked", ended_at=database_now())
    with pytest.raises(NotPossible):
        pairing.rotate(device.grant, now=database_now())


def test_expired_asking_is_noticed_even_where_the_device_still_waits(far):
    peer = ask(far.url)
    Peer.objects.update(expires_at=database_now() - timedelta(minutes=1))
    assert polled(peer).state == "off"


# --- our own address ---------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("host", "public", "seen_from", "told"),
    [
        ("127.0.0.1", "", "127.0.0.1", "http://127.0.0.1:{port}"), ("127.0.0.1", "", "192.0.2.1", ""), ("192.0.2.5", "", "192.0.2.1", "http://192.0.2.5:{port}"),
        ("0.0.0.0", "", "127.0.0.1", "http://127.0.0.1:{port}"), ("127.0.0.1", "https://s.example/", "192.0.2.1", "https://s.example"),
        ("2001:db8::5", "", "2001:db8::1", "http://[2001:db8::5]:{port}"),
    ],
)  # fmt: skip
def test_per_28_the_address_we_tell_is_one_on_which_we_listen(settings, host, public, seen_from, told):
    settings.SUZENT_HOST, settings.SUZENT_PUBLIC_URL = host, public
    assert installation.our_address(seen_from=seen_from) == told.format(port=settings.SUZENT_PORT)
