"""Peers and their lanes; what the tables refuse."""

import pytest
from django.db import IntegrityError, transaction
from django.utils import timezone

from peers_app.models import DeviceGrant, GrantRequest, Peer
from peers_app.standing import move
from sessions_app import lanes
from sessions_app.actions import create_project
from sessions_app.models import Lane

pytestmark = pytest.mark.django_db


def a_peer(**about):
    made = {"project": about.get("project") or create_project("home"), "name": "B", "base_url": "http://b:9", "state": "ready", "created_at": timezone.now(), **about}
    peer = Peer(**made)
    peer.token = "t" * 43
    peer.save()
    lanes.ensure(peer.lane_key)
    return peer


def paused(peer):
    return Lane.objects.get(key=peer.lane_key).paused_at is not None


@pytest.mark.parametrize("state", ["paused", "revoked", "off"])
def test_the_lane_of_a_peer_that_is_not_in_use_is_paused_until_it_is(state):
    peer = a_peer()
    assert move(peer, to=Peer.State(state), among=[Peer.State.READY], now=timezone.now())
    assert paused(peer)
    assert move(peer, to=Peer.State.READY, among=[Peer.State(state)], now=timezone.now())
    assert not paused(peer)
    assert Lane.objects.get(key=peer.lane_key).due_at <= timezone.now()


def test_a_peer_that_goes_offline_and_comes_back_keeps_the_time_of_its_lane():
    peer = a_peer()
    assert move(peer, to=Peer.State.OFFLINE, among=[Peer.State.READY], now=timezone.now(), last_error="It does not answer.")
    assert move(peer, to=Peer.State.READY, among=[Peer.State.OFFLINE], now=timezone.now())
    assert (paused(peer), Lane.objects.get(key=peer.lane_key).due_at) == (False, None)
    peer.refresh_from_db()
    assert peer.last_error == "It does not answer."


def test_a_move_from_another_state_changes_nothing():
    peer = a_peer()
    assert not move(peer, to=Peer.State.PAUSED, among=[Peer.State.OFFLINE], now=timezone.now())
    peer.refresh_from_db()
    assert (peer.state, paused(peer)) == ("ready", False)


def test_the_token_of_a_peer_is_sealed_in_its_row():
    peer = Peer.objects.get(pk=a_peer().pk)
    assert "tttt" not in peer.sealed_token
    assert peer.token == "t" * 43


@pytest.mark.parametrize(
    "about",
    [
        {"state": "lost"},
        {"state": "asking"},
        {"state": "ready", "request_id": "r", "expires_at": timezone.now()},
        {"state": "ready", "base_url": ""},
    ],
)
def test_a_peer_that_is_not_whole_cannot_be_stored(about):
    with pytest.raises(IntegrityError):
        a_peer(**about)


def test_one_address_is_one_peer_of_a_project_until_it_is_off():
    peer = a_peer()
    with pytest.raises(IntegrityError), transaction.atomic():
        a_peer(project=peer.project)
    move(peer, to=Peer.State.OFF, among=[Peer.State.READY], now=timezone.now())
    a_peer(project=peer.project)


@pytest.mark.parametrize(
    "about",
    [{"scope": "everything"}, {"state": "gone"}, {"state": "revoked"}, {"ended_at": timezone.now()}, {"lineage": ""}],
)
def test_a_grant_that_is_not_whole_cannot_be_stored(about):
    with pytest.raises(IntegrityError):
        DeviceGrant.objects.create(
            **{"project": create_project("home"), "display_name": "B", "lineage": "0" * 12, "created_at": timezone.now(), **about}
        )


@pytest.mark.parametrize("about", [{"state": "lost"}, {"state": "approved"}, {"state": "denied"}, {"served_at": timezone.now()}])
def test_a_request_that_is_not_whole_cannot_be_stored(about):
    with pytest.raises(IntegrityError):
        GrantRequest.objects.create(
            **{"request_id": "r", "controller_name": "B", "created_at": timezone.now(), "expires_at": timezone.now(), **about}
        )
