"""What ``inbound`` refuses before anything begins: wire.md 3, SEC-02, PER-17."""

import pytest

from peers_app import devices
from sessions_app.clock import database_now
from sessions_app.models import Session, Turn
from tests.peers_app.far_device import far_device
from tests.peers_app.pairing import paired, wrong

pytestmark = pytest.mark.django_db
PATH = "/channels/suzent/inbound"
FILE = "/nodes/peer-files/f1"


def attached(url):
    return {"content": "Look.", "attachments": [{"id": "f1", "url": url, "token": "file-token", "name": "n", "size": 5, "media_type": "text/plain"}]}


@pytest.mark.parametrize("content", [None, "", "   \n", 7, ["x"], {}])
def test_content_is_required(content):
    assert wrong(paired().post(PATH, {"content": content}), 400, "content is required")


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"\xff", b"null", b'{"content": "a\\u0000"}'])
def test_unreadable_json_is_refused(raw):
    assert wrong(paired().post(PATH, raw=raw), 400, "Invalid JSON body")


def test_content_that_is_too_long_is_refused():
    assert wrong(paired().post(PATH, {"content": "x" * 20_001}), 400)


@pytest.mark.parametrize(
    "spelled",
    [
        "suzent:{other}", "suzent:{other}:notes", "{own}:", "{own}:a:b", "{own}:a/b", "{own}::notes", "{own} ", " {own}", "SUZENT:{id}", "suzent:{id}x",
        "suzent:", "ses_1", "a b", "a.b", "../planner", "peer:{id}", "a" * 65, "notes\n", "nötes", "\u202enotes", "{own}:notes ", 7, True, ["notes"], {},
    ],
    ids=range(25),
)  # fmt: skip
def test_sec_02_no_spelling_reaches_another_session(spelled):
    device, other = paired(), paired("Other")
    chat_id = spelled
    if isinstance(spelled, str):
        chat_id = spelled.replace("{own}", device.agent_id).replace("{other}", other.grant.pk).replace("{id}", device.grant.pk)
    answer = device.post(PATH, {"content": "Hello.", "chat_id": chat_id})
    if chat_id == "ses_1":  # a plain name, so a session of its own, whatever it looks like
        assert devices.sessions_of(device.grant).get().agent_id == f"{device.agent_id}:ses_1"
        return
    assert wrong(answer, 403, "chat_id must belong to the authenticated peer namespace")
    assert not Session.objects.filter(kind="remote").exists()


def test_a_device_has_a_limit_of_sessions(monkeypatch):
    monkeypatch.setattr(devices, "SESSIONS_AT_MOST", 2)
    device = paired()
    for name in ("a", "b"):
        devices.opened(device.grant, f"{device.agent_id}:{name}", now=database_now())
    assert wrong(device.post(PATH, {"content": "Hello.", "chat_id": "c"}), 429)


@pytest.mark.parametrize(
    "url",
    [
        "http://192.0.2.1:9" + FILE, "http://localhost:9" + FILE, "{far}/nodes/peer-files/", "{far}/nodes/peer-files/../x", "{far}/nodes/peer-files/a/b",
        "{far}/api/sessions", "{far}" + FILE + "?x=1", "{far}" + FILE + "#x", "http://user@127.0.0.1:9" + FILE, "file:///etc/passwd", "http://169.254.169.254" + FILE,
        "{far}/nodes/peer-files/%2e%2e", "{far}" + FILE + "\r\nX: y", "//127.0.0.1" + FILE, "{far}" + FILE + "?",
    ],
    ids=range(15),
)  # fmt: skip
def test_per_17_an_attachment_leads_to_the_device_and_nowhere_else(url):
    device = paired()
    with far_device(**{FILE: (200, b"bytes")}) as far:
        assert wrong(device.post(PATH, attached(url.replace("{far}", far.url))), 400)
        assert far.served.heard == []
    assert not Turn.objects.exists()


@pytest.mark.parametrize(
    "attachments",
    ["x", {}, [1], [{}], [{"url": "u", "token": "t", "name": "n"}], [{"url": "u", "token": "t", "name": "n", "size": -1}],
     [{"url": "u", "token": "t", "name": "n", "size": True}], [{"url": "u", "token": "t", "name": "n", "size": 1}] * 9,
     [{"url": "u", "token": "t", "name": "n", "size": 50 * 1024 * 1024 + 1}], [{"url": "u", "token": "é", "name": "n", "size": 1}]],
    ids=range(10),
)  # fmt: skip
def test_attachments_that_are_none_are_refused(attachments):
    assert wrong(paired().post(PATH, {"content": "Look.", "attachments": attachments}), 400)
