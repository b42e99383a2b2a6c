"""Pairing, receiving half: wire.md 2, row by row; PER-05, PER-08, PER-17."""

import threading
from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client

from peers_app import grants, pairing, wire
from peers_app.grants import NotOpen, NotPossible
from peers_app.models import DeviceGrant, GrantRequest
from sessions_app.clock import database_now
from suzent_site.errors import Invalid
from tests.peers_app.pairing import Device, asked, paired, wrong
from tests.people import office

pytestmark = pytest.mark.django_db


def ask(body=None, **raw):
    return Device().post("/nodes/grant-request", body, **raw)


def poll(request_id):
    return Device().get(f"/nodes/grant-status/{request_id}")


def approve(request, **about):
    return grants.approve(request, **{"project": office(), "who": "olga", "now": database_now(), **about})


# --- ask ---------------------------------------------------------------------------------------------------------
def test_a_request_waits_for_the_operator():
    answer = ask({"controller_name": "Laptop", "controller_addr": "192.0.2.1:25314", "controller_identity": "a" * 32})
    made = GrantRequest.objects.get()
    assert (answer.status_code, answer.json()) == (200, {"request_id": made.request_id, "status": "pending"})
    assert len(made.request_id) == 22
    assert (made.controller_name, made.controller_addr, made.controller_identity) == ("Laptop", "http://192.0.2.1:25314", "a" * 32)
    assert made.came_from == "127.0.0.1"


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b"\xff", b'{"a": 1, "a": 2}'])
def test_an_empty_or_unreadable_body_counts_as_one_without_fields(raw):
    assert ask(raw=raw).status_code == 200
    assert GrantRequest.objects.get().controller_name == "unknown"


@pytest.mark.parametrize("name", [None, "", "   ", 7, [], {}])
def test_a_request_without_a_name_is_unknown(name):
    ask({"controller_name": name})
    assert GrantRequest.objects.get().controller_name == "unknown"


def test_a_long_name_is_cut_and_a_claimed_identity_that_is_none_is_dropped():
    ask({"controller_name": "x" * 5000, "controller_identity": "not one"})
    made = GrantRequest.objects.get()
    assert (len(made.controller_name), made.controller_identity) == (100, "")


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("h:9", "http://h:9"), ("http://h:9", "http://h:9"), ("http://h:9/", "http://h:9"), ("HTTP://H:9", "http://h:9"), ("http://h:09", "http://h:9"),
        ("ws://h:9", "http://h:9"), ("wss://h", "https://h"), ("https://h:443", "https://h"), ("http://h:80/", "http://h"), ("http://h.:9", "http://h:9"),
        ("http://[2001:DB8:0:0::1]:9", "http://[2001:db8::1]:9"), ("http://bücher.example:9", "http://xn--bcher-kva.example:9"),
    ],
)  # fmt: skip
def test_per_27_an_address_has_one_spelling(given, kept):
    ask({"controller_addr": given})
    assert GrantRequest.objects.get().controller_addr == kept


@pytest.mark.parametrize(
    "address",
    [
        "http://h:9/x/..", "http://h:9/x", "http://user@h:9", "http://u:p@h:9", "http://h:9#f", "http://h:9?q=1", "file:///etc/passwd", "gopher://h",
        "http://", "http://h:0", "http://h:99999", "http://0x7f000001", "http://2130706433", "http://h\r\nX: y", "h\nx:9", "http://h:9/\\x", "x" * 400,
        "http://[::ffff:169.254.169.254]",
    ],
    ids=range(18),
)  # fmt: skip
def test_per_17_an_address_that_is_none_is_refused_by_name(address):
    answer = ask({"controller_addr": address})
    if answer.status_code == 200:
        assert GrantRequest.objects.get().controller_addr == ""
    else:
        assert wrong(answer, 400)
        assert "controller_addr" in answer.json()["error"]
        assert not GrantRequest.objects.exists()


@pytest.mark.parametrize("address", ["http://169.254.169.254", "http://127.0.0.1:25314", "http://0.0.0.0:9"])
def test_per_17_an_address_that_is_never_called_is_not_kept(address):
    assert ask({"controller_addr": address}).status_code == 200
    assert GrantRequest.objects.get().controller_addr == ""


def test_fifty_requests_in_ten_minutes_are_enough_resolved_ones_included():
    for number in range(50):
        request = asked(f"Device {number}")
        grants.deny(request, who="olga", now=database_now()) if number % 2 else None
    answer = ask({"controller_name": "One more"})
    assert wrong(answer, 429)
    assert int(answer["Retry-After"]) > 0
    GrantRequest.objects.update(created_at=database_now() - timedelta(minutes=11))
    assert ask().status_code == 200


# --- poll --------------------------------------------------------------------------------------------------------
def test_the_poll_follows_the_operator_and_serves_the_token_once():
    request_id = ask({"controller_name": "Laptop"}).json()["request_id"]
    assert poll(request_id).json() == {"status": "pending"}
    grant = approve(GrantRequest.objects.get())
    served = poll(request_id).json()
    assert (set(served), served["status"], len(served["token"])) == ({"status", "token", "node_identity"}, "approved", 43)
    assert len(bytes.fromhex(served["node_identity"])) == 16
    assert poll(request_id).json() == {"status": "approved"}
    assert Device(served["token"]).get("/channels/suzent/whoami").json()["peer_id"] == grant.device_id


def test_a_head_does_not_use_up_the_token():
    request = asked()
    approve(request)
    assert Client().head(f"/nodes/grant-status/{request.pk}").status_code == 405
    assert "token" in poll(request.pk).json()


def test_the_identity_of_an_installation_stays():
    identities = set()
    for _ in range(2):
        request = asked()
        approve(request)
        identities.add(poll(request.pk).json()["node_identity"])
    assert len(identities) == 1


def test_a_denied_request_says_so():
    request = asked()
    grants.deny(request, who="olga", now=database_now())
    assert poll(request.pk).json() == {"status": "denied"}


@pytest.mark.parametrize("request_id", ["x", "a" * 22, "a" * 500, "%00", "%F0%9F%98%80", "a" * 21 + "%80"])
def test_an_unknown_request_is_not_found(request_id):
    assert wrong(poll(request_id), 404, "Unknown or expired request")


def test_per_08_an_expired_request_is_over():
    request = asked()
    GrantRequest.objects.update(expires_at=database_now())
    assert wrong(poll(request.pk), 404, "Unknown or expired request")
    with pytest.raises(NotOpen):
        approve(request)
    with pytest.raises(NotOpen):
        grants.deny(request, who="olga", now=database_now())


def test_a_token_that_nobody_fetched_in_time_is_never_made():
    request = asked()
    grant = approve(request)
    GrantRequest.objects.update(expires_at=database_now())
    assert wrong(poll(request.pk), 404)
    assert DeviceGrant.objects.get(pk=grant.pk).digest is None


def test_a_grant_that_was_revoked_before_its_first_poll_serves_no_token():
    request = asked()
    grants.revoke(approve(request), now=database_now())
    assert poll(request.pk).json() == {"status": "denied"}


def test_a_token_that_the_operator_carries_over_is_not_followed_by_another_that_is_no_good():
    request = asked()
    carried = pairing.rotate(approve(request), now=database_now())
    assert poll(request.pk).json() == {"status": "approved"}
    assert Device(carried).get("/channels/suzent/whoami").status_code == 200


# --- approve and deny --------------------------------------------------------------------------------------------
def test_per_08_a_request_is_answered_once():
    request = asked()
    approve(request)
    with pytest.raises(NotOpen):
        approve(request)
    with pytest.raises(NotOpen):
        grants.deny(request, who="otto", now=database_now())
    assert DeviceGrant.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_per_08_many_polls_at_once_get_one_token():
    request = asked()
    approve(request)
    answers = together(lambda: poll(request.pk).json(), times=8)
    assert [set(answer) for answer in answers].count({"status", "token", "node_identity"}) == 1
    assert {answer["status"] for answer in answers} == {"approved"}


@pytest.mark.django_db(transaction=True)
def test_per_08_of_two_operators_one_wins_and_the_other_is_told():
    request = asked()
    office()

    def answer():
        try:
            return approve(request)
        except NotOpen as refused:
            return refused

    answers = together(answer, times=4)
    assert sum(isinstance(answer, DeviceGrant) for answer in answers) == 1
    assert DeviceGrant.objects.count() == 1


def together(act, *, times):
    """What ``act`` answers in so many threads that begin at one moment."""
    barrier, answers = threading.Barrier(times), []

    def run():
        try:
            barrier.wait()
            answers.append(act())
        finally:
            connection.close()

    threads = [threading.Thread(target=run) for _ in range(times)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == times
    return answers


def test_per_05_a_claimed_identity_is_told_and_replaces_nobody():
    known = paired("Laptop", identity="a" * 32)
    request = asked("Laptop", identity="a" * 32)
    assert grants.claimed_by(request) == [f"Laptop ({known.grant.device_id})"]
    added = approve(request)
    assert known.get("/channels/suzent/whoami").status_code == 200
    assert (added.replaces, added.lineage) == (None, added.device_id)


def test_a_replaced_device_is_revoked_and_hands_on_what_the_operator_chose():
    old = paired("Laptop", runtime="scripted", tools=["agent_list"])
    new = paired("Laptop, new", replace=old.grant, tools=["agent_send"])
    assert wrong(old.get("/channels/suzent/whoami"), 401)
    heir = DeviceGrant.objects.get(pk=new.grant.pk)
    assert (heir.replaces_id, heir.lineage, heir.project_id) == (old.grant.device_id, old.grant.device_id, "office")
    assert (heir.runtime, heir.tools, heir.scope) == ("scripted", ["agent_list"], "agent")


def test_a_device_has_one_heir():
    old = paired()
    paired(replace=old.grant)
    with pytest.raises(Invalid, match="replace"):
        approve(asked(), replace=old.grant)


def test_pausing_resuming_and_revoking_go_from_the_states_they_can_go_from():
    grant = paired().grant
    with pytest.raises(NotPossible):
        grants.resume(grant)
    grants.pause(grant)
    with pytest.raises(NotPossible):
        grants.pause(grant)
    grants.revoke(grant, now=database_now())
    for act in (grants.pause, grants.resume, lambda grant: grants.revoke(grant, now=database_now())):
        with pytest.raises(NotPossible):
            act(grant)


def test_old_requests_that_came_to_nothing_are_forgotten():
    asked("Long ago")
    GrantRequest.objects.update(expires_at=database_now() - timedelta(days=8))
    ask({"controller_name": "Now"})
    assert [made.controller_name for made in GrantRequest.objects.all()] == ["Now"]


def test_reading_an_offer_or_a_name_never_shows_a_token():
    offer = wire.Offer("http://h", "secret-token")
    assert "secret-token" not in repr(offer)
