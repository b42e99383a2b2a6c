"""Devices on the local network: what is announced, and what is made of announcements that anybody may send.

On the loopback interface only. Others may test there at the same time, so each test knows its own device by a fresh identity.
"""

import asyncio
import io
import json
import secrets
import threading
from contextlib import contextmanager

import pytest
import zeroconf
from django.core.management import CommandError, call_command
from zeroconf import ServiceStateChange

from peers_app import discovery, installation
from peers_app.discovery import TYPE, found_in
from peers_app.models import Peer
from sessions_app.clock import database_now
from suzent_site.asgi import application
from tests.people import administrator, browser_of, office, onlooker

pytestmark = pytest.mark.django_db
IDENTITY = "b" * 32
PATIENCE = 20  # seconds that a loaded machine may take
AROUND = "/admin/peers_app/peer/around/"


@pytest.fixture(autouse=True)
def loopback(settings):
    settings.SUZENT_DISCOVERY_INTERFACES = ["127.0.0.1"]


@contextmanager
def network():
    opened = zeroconf.Zeroconf(interfaces=["127.0.0.1"])
    try:
        yield opened
    finally:
        opened.close()


@contextmanager
def device_around(**txt):
    """A device that announces itself; its identity."""
    identity = secrets.token_hex(16)
    with network() as far:
        far.register_service(service(name=f"far-{identity[:12]}", node_identity=identity, **txt))
        yield identity


def service(*addresses, port=25314, name="far", raw=None, **txt):
    """``txt``: entries of its TXT record; ``raw``: all its bytes."""
    said = {"display_name": "Laptop", "node_identity": IDENTITY} | txt if raw is None else raw
    return zeroconf.ServiceInfo(TYPE, f"{name}.{TYPE}", port=port, parsed_addresses=[*addresses] or ["192.0.2.7"], properties=said)


def run(*arguments):
    out = io.StringIO()
    call_command("peer", "find", *arguments, stdout=out)
    return json.loads(out.getvalue())


def until_found(identity, look):
    """What ``look`` makes of the device; it listens a second at a time."""
    for _ in range(PATIENCE):
        if found := look(identity):
            return found
    return None


def by_command(identity):
    return [found for found in run("--seconds", "1") if found["node_identity"] == identity]


# --- over the network --------------------------------------------------------------------------------------------
def test_a_device_on_the_network_is_found_by_the_command():
    with device_around() as identity:
        found = until_found(identity, by_command)
    assert found == [{"name": "Laptop", "address": "http://192.0.2.7:25314", "node_identity": identity, "known": False}]
    assert not Peer.objects.exists()


class Watcher:
    """Somebody on the network who waits for news of one service."""

    def __init__(self, name):
        self.name, self.news = name, {state: threading.Event() for state in ServiceStateChange}

    def hear(self, *, name, state_change, **_):
        if name == self.name:
            self.news[state_change].set()


async def live(meanwhile):
    """The application from its server's start to its end."""
    steps = [lambda: "lifespan.startup", lambda: meanwhile() or "lifespan.shutdown"]

    async def receive():
        return {"type": await asyncio.to_thread(steps.pop(0))}

    async def send(event):
        assert event["type"].endswith(".complete")

    await application({"type": "lifespan"}, receive, send)


def zeroconf_threads():
    return {thread for thread in threading.enumerate() if "zeroconf" in thread.name}


@pytest.mark.django_db(transaction=True)
def test_the_web_server_is_announced_from_its_start_to_its_end(settings):
    """Its name is longer than the record holds."""
    settings.SUZENT_HOST, settings.SUZENT_PORT, settings.SUZENT_DEVICE_NAME = "192.0.2.9", 26000, "\U0001f600" * 100
    settings.AT_WEB_START, settings.AT_WEB_END = ["peers_app.discovery.announce"], ["peers_app.discovery.fall_silent"]
    identity = installation.node_identity()
    watcher = Watcher(f"suzent-{identity[:12]}.{TYPE}")
    told = []
    with network() as near:
        zeroconf.ServiceBrowser(near, TYPE, handlers=[watcher.hear])
        before = zeroconf_threads()
        asyncio.run(live(lambda: told.append(near.get_service_info(TYPE, watcher.name, timeout=PATIENCE * 1000))))
        assert watcher.news[ServiceStateChange.Removed].wait(PATIENCE)
        assert zeroconf_threads() == before
    assert (told[0].parsed_addresses(), told[0].port) == (["192.0.2.9"], 26000)
    assert told[0].decoded_properties == {"display_name": "\U0001f600" * 50, "node_identity": identity}


@pytest.mark.parametrize(
    ("host", "interface", "why"),
    [("192.0.2.9", "192.0.2.250", "Cannot assign"), ("127.0.0.1", "127.0.0.1", "no address"), ("no-such-host.invalid", "127.0.0.1", "Name or service")],
)
def test_what_keeps_us_from_being_announced_is_a_warning(host, interface, why, settings, caplog):
    settings.SUZENT_HOST, settings.SUZENT_DISCOVERY_INTERFACES = host, [interface]
    before = zeroconf_threads()
    discovery.announce()
    [record] = caplog.records
    assert (record.levelname, record.msg["event"]) == ("WARNING", "not_announced")
    assert why in record.msg["error"]
    assert zeroconf_threads() == before
    discovery.fall_silent()


def test_a_network_that_cannot_be_asked_is_told_in_one_line(settings):
    settings.SUZENT_DISCOVERY_INTERFACES = ["192.0.2.250"]
    with pytest.raises(CommandError, match="The local network cannot be asked: .*Cannot assign"):
        run()


def test_without_the_extra_nothing_is_found_and_it_is_said_why(monkeypatch):
    monkeypatch.setattr(discovery, "zeroconf", None)  # as after an ImportError
    with pytest.raises(CommandError, match="needs the extra discovery"):
        run()


@pytest.mark.parametrize("seconds", ["0", "-1", "61", "nan", "inf", "soon"])
def test_the_seconds_to_listen_have_bounds(seconds):
    with pytest.raises(CommandError, match="--seconds: must be a number above 0 and at most 60"):
        run(f"--seconds={seconds}")


# --- what strangers may announce ---------------------------------------------------------------------------------
def told(*services):
    return [(found.name, found.address, found.node_identity) for found in found_in(services)]


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "127.9.9.9", "::1", "169.254.169.254", "169.254.1.1", "fe80::1", "0.0.0.0", "224.0.0.251", "255.255.255.255", "::ffff:127.0.0.1",
     "100.100.100.200"],
)  # fmt: skip
def test_the_networks_word_never_leads_to_this_machine_to_metadata_or_to_link_local(address):
    assert told(service(address, "192.168.1.5")) == [("Laptop", "http://192.168.1.5:25314", IDENTITY)]


def test_each_address_is_told_in_its_one_spelling():
    assert told(service("fd00:0:0::7", "10.0.0.7", "10.0.0.7", port=80)) == [
        ("Laptop", "http://10.0.0.7", IDENTITY), ("Laptop", "http://[fd00::7]", IDENTITY),
    ]  # fmt: skip


@pytest.mark.parametrize("port", [0, None])
def test_a_service_without_a_port_is_not_told(port):
    assert told(service(port=port)) == []


@pytest.mark.parametrize("identity", ["", "b" * 31, "b" * 33, "B" * 32, "b" * 31 + "\n", "é" * 16, b"\xff" * 32, "' OR 1=1 --"])
def test_an_identity_in_another_form_is_none(identity):
    assert told(service(node_identity=identity)) == [("Laptop", "http://192.0.2.7:25314", "")]


@pytest.mark.parametrize(
    ("name", "shown"),
    [("", "far"), (b" \t", "far"), (b"\xff\xfeok", "\ufffd\ufffdok"), ("a\x00b", "a\u2400b"), ("x" * 240, "x" * 99 + "…"), (b"\xed\xa0\x80", "\ufffd" * 3)],
)
def test_any_bytes_can_be_a_name(name, shown):
    assert [found.name for found in found_in([service(display_name=name)])] == [shown]


@pytest.mark.parametrize("raw", [b"", b"\x00", b"\xff", b"\x05a", b"\x0ddisplay_name=", b"\x0cdisplay_name", b"\x01=" * 500])
def test_a_record_that_is_cut_or_odd_has_no_name_and_no_identity(raw):
    assert told(service(raw=raw)) == [("far", "http://192.0.2.7:25314", "")]


def test_whoever_claims_our_identity_is_not_told():
    assert told(service(node_identity=installation.node_identity())) == []


def test_a_flood_of_announcements_is_cut():
    flood = [service(*(f"10.0.{number}.{last}" for last in range(1, 20)), name=f"n{number}") for number in range(50)]
    assert len(found_in(flood)) == discovery.LIMIT


def test_an_address_that_a_peer_has_is_known_and_a_claimed_identity_makes_nothing_known():
    Peer.objects.create(
        project=office(), name="far", base_url="http://192.0.2.7:25314", state=Peer.State.REVOKED, node_identity=IDENTITY, created_at=database_now(),
    )  # fmt: skip
    assert [(found.address, found.known) for found in found_in([service("192.0.2.7", "192.0.2.8")])] == [
        ("http://192.0.2.7:25314", True), ("http://192.0.2.8:25314", False),
    ]  # fmt: skip


# --- in the console ----------------------------------------------------------------------------------------------
@pytest.mark.django_db(transaction=True)
def test_the_console_shows_what_is_around_and_leads_to_asking_it():
    browser = browser_of(administrator())

    def by_console(identity):
        page = browser.get(AROUND).content.decode()
        return page if identity in page else ""

    with device_around(display_name="\u202e<b>Laptop") as identity:
        page = until_found(identity, by_console)
    assert "U+202E" in page
    assert "&lt;b&gt;Laptop" in page
    assert 'href="/admin/peers_app/peer/add/?base_url=http%3A%2F%2F192.0.2.7%3A25314"' in page
    assert 'value="http://192.0.2.7:25314"' in browser.get("/admin/peers_app/peer/add/?base_url=http%3A%2F%2F192.0.2.7%3A25314").content.decode()


def test_the_console_says_why_it_cannot_look_around(settings):
    settings.SUZENT_DISCOVERY_INTERFACES = ["192.0.2.250"]
    assert "The local network cannot be asked" in browser_of(administrator()).get(AROUND).content.decode()


def test_an_onlooker_does_not_look_around():
    assert browser_of(onlooker()).get(AROUND).status_code == 403
