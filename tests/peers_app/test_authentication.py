"""Who may call: PER-09, PER-19, PER-20, PER-21."""

import asyncio
import base64
import io
import json
import logging

import pytest
from django.core.management import call_command
from django.utils import timezone

from inbox_app.models import Message
from peers_app import grants
from peers_app.models import DeviceGrant, Peer
from sessions_app import lanes
from sessions_app.clock import database_now
from sessions_app.models import Lane, Project
from tests import asgi
from tests.peers_app.pairing import Device, paired, wrong

pytestmark = pytest.mark.django_db

CALLS = [
    ("POST", "/channels/suzent/inbox"), ("GET", "/channels/suzent/session"), ("POST", "/channels/suzent/stop"),
    ("GET", "/channels/suzent/whoami"), ("POST", "/channels/suzent/inbound"), ("POST", "/nodes/peer-offer"),
]  # fmt: skip


def whoami(**headers):
    return Device(headers=headers).get("/channels/suzent/whoami")


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_every_channel_path_needs_a_token_from_every_address(method, path):
    client = Device().client
    for peer in ("127.0.0.1", "::1", "192.0.2.9"):
        assert wrong(client.generic(method, path, b"{}", content_type="application/json", REMOTE_ADDR=peer), 401)


def test_a_token_is_taken_from_either_header():
    device = paired()
    for header in ({"authorization": f"Bearer {device.token}"}, {"x-suzent-token": device.token}, {"authorization": f"bearer {device.token}"}):
        assert whoami(**header).json()["peer_id"] == device.grant.device_id


@pytest.mark.parametrize(
    "value",
    [
        "", "Bearer", "Bearer ", "Basic {token}", "{token}", "Bearer {token}x", "Bearer x{token}", "Bearer {token},Bearer {token}",
        "Bearer {token} {token}", "Bearer\t{token}", "Bearer \x00{token}", "Bearer é€", "Bearer \x80\xff", "Bearer 😀", "Bearer " + "a" * 1_000_000,
        "Bearer " + "a" * 43,
    ],
    ids=range(16),
)  # fmt: skip
def test_per_20_whatever_is_no_good_token_is_401(value):
    device = paired()
    assert wrong(whoami(authorization=value.replace("{token}", device.token)), 401)
    assert wrong(whoami(**{"x-suzent-token": value.replace("{token}", "x")}), 401)


def test_per_20_two_tokens_are_none():
    device = paired()
    assert wrong(whoami(authorization=f"Bearer {device.token}", **{"x-suzent-token": "a" * 43}), 401)


@pytest.mark.parametrize(
    "headers",
    [
        [(b"authorization", b"Bearer \x80\x81\xfe\xff")], [(b"x-suzent-token", "😀".encode())], [(b"authorization", b"Bearer \xed\xa0\x80")],
        [(b"authorization", b"Bearer {token}"), (b"authorization", b"Bearer {token}")],
        [(b"x-suzent-token", b"{token}"), (b"x-suzent-token", b"{token}")],
    ],
    ids=["bytes", "emoji", "surrogate", "twice", "twice-x"],
)  # fmt: skip
@pytest.mark.django_db(transaction=True)
def test_per_20_bytes_as_a_server_passes_them_on(headers):
    token = paired().token.encode()
    sent = [(name, value.replace(b"{token}", token)) for name, value in headers]

    async def call():
        answer = await asgi.ask("GET", "/channels/suzent/whoami", headers=sent)
        await asgi.stop()
        return answer

    answer = asyncio.run(call())
    assert (answer.status, list(answer.json())) == (401, ["error"])


@pytest.mark.parametrize("query", ["token", "access_token", "api_key", "x-suzent-token"])
def test_per_19_a_token_in_the_url_is_nothing(query):
    assert wrong(Device().get(f"/channels/suzent/whoami?{query}={paired().token}"), 401)


@pytest.mark.parametrize("state", ["paused", "revoked"])
def test_per_09_a_grant_that_ends_is_refused_from_the_next_request_on(state):
    device = paired()
    assert device.get("/channels/suzent/whoami").status_code == 200
    grants.pause(device.grant) if state == "paused" else grants.revoke(device.grant, now=database_now())
    assert wrong(device.get("/channels/suzent/whoami"), 401)
    assert wrong(device.send("m-1", "Hello."), 401)
    assert not Message.objects.exists()


def test_a_resumed_grant_is_good_again():
    device = paired()
    grants.pause(device.grant)
    grants.resume(device.grant)
    assert device.get("/channels/suzent/whoami").status_code == 200


def test_an_archived_project_has_no_devices():
    device = paired()
    Project.objects.filter(pk=device.grant.project_id).update(archived_at=timezone.now())
    assert wrong(device.get("/channels/suzent/whoami"), 401)


@pytest.mark.parametrize("header", ["x-forwarded-for", "x-real-ip", "forwarded", "x-client-ip"])
def test_per_21_no_header_makes_a_caller_local(header):
    device = Device(headers={header: "for=127.0.0.1" if header == "forwarded" else "127.0.0.1", "host": "localhost"})
    for method, path in CALLS:
        assert wrong(device.client.generic(method, path, b"{}", headers=device.headers, REMOTE_ADDR="127.0.0.1"), 401)


def test_a_device_that_calls_has_its_mail_tried_at_once():
    device = paired()
    peer = Peer(project=device.grant.project, name="L", base_url="http://l:9", state="offline", created_at=timezone.now(), reverse_grant=device.grant)
    peer.token = "t" * 43
    peer.save()
    lanes.ensure(peer.lane_key)
    assert Lane.objects.get(key=peer.lane_key).due_at is None
    device.get("/channels/suzent/whoami")
    assert Lane.objects.get(key=peer.lane_key).due_at is not None


def test_per_19_no_log_row_or_export_holds_a_token(caplog):
    caplog.set_level(logging.DEBUG)
    device = paired()
    device.send("m-1", "Hello.")
    Device(token=device.token + "x").get(f"/channels/suzent/whoami?token={device.token}")
    device.post("/channels/suzent/inbox", raw=b"{")
    grants.revoke(device.grant, now=database_now())
    device.get("/channels/suzent/whoami")
    dump = io.StringIO()
    call_command("dumpdata", stdout=dump)
    assert json.loads(dump.getvalue())
    for secret in (device.token, base64.b64encode(device.token.encode()).decode()):
        assert secret not in dump.getvalue()
        assert not [record for record in caplog.records if secret in record.getMessage() and "Not Found" not in record.getMessage()]


def test_a_grant_keeps_a_digest_and_a_hint():
    device = paired()
    kept = DeviceGrant.objects.get(pk=device.grant.pk)
    assert len(device.token) == 43
    assert kept.hint == f"{device.token[:6]}…{device.token[-4:]}"
    assert device.token not in str(vars(kept))
