"""``manage.py grant`` and ``peer``: one line of JSON, errors in one line."""

import io
import json

import pytest
from django.core.management import CommandError, call_command

from peers_app import tasks
from peers_app.models import DeviceGrant, Peer
from tests.peers_app.far_device import far_device
from tests.peers_app.pairing import asked, paired
from tests.people import office

pytestmark = pytest.mark.django_db


def run(*arguments):
    out = io.StringIO()
    call_command(*arguments, stdout=out)
    [line] = out.getvalue().splitlines()
    return json.loads(line)


def test_grants_are_listed_with_the_requests_that_wait():
    device, request = paired("Laptop"), asked("Tablet")
    assert run("grant", "list") == [
        {"device_id": None, "request_id": request.pk, "display_name": "Tablet", "state": "pending"},
        {"device_id": device.grant.pk, "request_id": device.grant.request.pk, "display_name": "Laptop", "state": "active"},
    ]


def test_nothing_is_an_empty_list():
    assert run("grant", "list") == run("peer", "list") == []


def test_a_request_is_approved_once():
    office()
    request = asked("Tablet")
    made = run("grant", "approve", request.pk)
    assert (made["display_name"], made["state"], made["request_id"]) == ("Tablet", "active", request.pk)
    assert DeviceGrant.objects.get(pk=made["device_id"]).project_id == "office"
    with pytest.raises(CommandError, match="not open"):
        run("grant", "approve", request.pk)


def test_a_request_is_approved_as_a_device_that_is_known():
    old = paired("Laptop")
    made = run("grant", "approve", asked("Laptop").pk, "--replace", old.grant.pk)
    assert DeviceGrant.objects.get(pk=made["device_id"]).replaces_id == old.grant.pk


def test_a_request_is_denied():
    assert run("grant", "deny", asked("Tablet").pk)["state"] == "denied"


def test_a_grant_is_paused_resumed_rotated_and_revoked():
    device = paired().grant.pk
    assert run("grant", "pause", device)["state"] == "paused"
    assert run("grant", "resume", device)["state"] == "active"
    assert len(run("grant", "rotate", device)["token"]) == 43
    assert run("grant", "revoke", device)["state"] == "revoked"
    with pytest.raises(CommandError, match="not possible"):
        run("grant", "resume", device)


@pytest.mark.parametrize("arguments", [("grant", "pause", "0" * 12), ("grant", "approve", "x"), ("grant", "deny", "\x1b[2J"), ("peer", "pause", "x")])
def test_what_is_not_there_is_told_in_one_line(arguments):
    with pytest.raises(CommandError, match="There is no") as refused:
        run(*arguments)
    assert str(refused.value).isprintable()


def test_a_device_is_asked_listed_paused_resumed_and_removed():
    office()
    with far_device() as far:
        assert run("peer", "ask", far.url) == {"request_id": "r" * 22, "state": "asking"}
        far.approves()
        tasks.poll()
    peer = Peer.objects.get()
    shown = {"peer_id": peer.pk, "agent_id": f"peer:{peer.pk}", "name": "127.0.0.1", "base_url": far.url, "state": "ready"}
    assert run("peer", "list") == run("peer", "list", "--project", "office") == [shown]
    assert run("peer", "pause", peer.pk) == {**shown, "state": "paused"}
    assert run("peer", "resume", peer.agent_id) == shown
    assert run("peer", "remove", peer.pk) == {**shown, "state": "removed"}
    assert run("peer", "list") == []


def test_nobody_there_is_one_line():
    office()
    with far_device() as far:
        pass
    with pytest.raises(CommandError, match="no connection"):
        run("peer", "ask", far.url)
