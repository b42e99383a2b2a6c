"""The console's pages for devices."""

import re

import pytest
from django.contrib.admin.utils import quote

from peers_app import grants, pairing, tasks
from peers_app.models import DeviceGrant, GrantRequest, Peer
from sessions_app.clock import database_now
from sessions_app.models import Session
from tests.peers_app.far_device import TOKEN, far_device
from tests.peers_app.pairing import asked, paired
from tests.people import administrator, browser_of, office, onlooker, operator

pytestmark = pytest.mark.django_db
REQUESTS, GRANTS, PEERS = ("/admin/peers_app/grantrequest/", "/admin/peers_app/devicegrant/", "/admin/peers_app/peer/")
ODD = "\u202egpj\u200b\x1b[2J<b>bold</b>\r\nINFO approved"


@pytest.fixture
def browser():
    return browser_of(administrator())


def page(browser, path):
    response = browser.get(path)
    assert response.status_code == 200, response
    return response.content.decode()


def act(browser, path, key, name, **fields):
    """Send the dialog of an action and say what the operator is told."""
    response = browser.post(f"{path}{quote(key)}/{name}/", {"_form_submitted": "True", **fields}, follow=True)
    assert response.status_code == 200, response
    return " ".join(str(said) for said in response.context["messages"])


def ready_peer(far):
    pairing.ask(far.url, project=office(), now=database_now())
    far.approves()
    tasks.poll()
    return Peer.objects.get()


@pytest.mark.parametrize("path", [REQUESTS, GRANTS, PEERS])
def test_empty_pages_say_where_others_reach_us(browser, path, settings):
    settings.SUZENT_PUBLIC_URL = "https://s.example"
    assert "https://s.example" in page(browser, path)
    settings.SUZENT_PUBLIC_URL, settings.SUZENT_HOST = "", "127.0.0.1"
    assert "No other machine reaches this installation" in page(browser, path)


def test_a_request_is_shown_with_what_it_claims_and_approved_with_what_was_chosen(browser):
    known = paired("Laptop", identity="a" * 32)
    request = asked("Laptop", identity="a" * 32, address="http://b:9")
    shown = page(browser, f"{REQUESTS}{quote(request.pk)}/change/")
    for told in ("192.0.2.7", "http://b:9", f"Laptop ({known.grant.pk})", "unproven"):
        assert told in shown
    asked_of_operator = page(browser, f"{REQUESTS}{quote(request.pk)}/approve/")
    for told in ("add as a new device", "office", "agent_send"):
        assert told in asked_of_operator
    said = act(browser, REQUESTS, request.pk, "approve", project="office", runtime="scripted", tools=["agent_list"])
    assert "fetches its token itself" in said
    grant = GrantRequest.objects.get(pk=request.pk).grant
    assert (grant.runtime, grant.tools, grant.replaces, grant.created_by) == ("scripted", ["agent_list"], None, "operator ada")
    assert known.get("/channels/suzent/whoami").status_code == 200


def test_a_request_is_approved_as_a_known_device_only_if_the_operator_says_so(browser):
    known, request = paired("Laptop"), asked("Laptop")
    act(browser, REQUESTS, request.pk, "approve", project="office", runtime="echo", replace=known.grant.pk)
    assert DeviceGrant.objects.get(pk=known.grant.pk).state == "revoked"
    assert GrantRequest.objects.get(pk=request.pk).grant.replaces_id == known.grant.pk


def test_per_08_the_second_operator_is_told(browser):
    office()
    request = asked()
    act(browser, REQUESTS, request.pk, "approve", project="office", runtime="echo")
    assert "not open" in act(browser, REQUESTS, request.pk, "deny")
    assert DeviceGrant.objects.count() == 1


def test_a_grant_is_paused_resumed_and_revoked(browser):
    device = paired()
    for name, state in (("pause", "paused"), ("resume", "active"), ("revoke", "revoked")):
        act(browser, GRANTS, device.grant.pk, name)
        assert DeviceGrant.objects.get().state == state
    assert "not possible" in act(browser, GRANTS, device.grant.pk, "resume")


def test_rights_reach_the_sessions_that_the_device_has(browser):
    device = paired("Laptop")
    device.send("m-1", "Hello.")
    act(browser, GRANTS, device.grant.pk, "change_rights", display_name="", scope="read", runtime="scripted", tools=["agent_send"])
    grant, session = DeviceGrant.objects.get(), Session.objects.get(pk=device.agent_id)
    assert (grant.display_name, grant.scope, grant.runtime, grant.tools) == ("Laptop", "read", "scripted", ["agent_send"])
    assert (session.runtime, session.config) == ("scripted", {"tools": ["agent_send"]})


def test_a_rotated_token_is_shown_once_and_nowhere_else(browser):
    device = paired()
    path = f"{GRANTS}{device.grant.pk}/rotate/"
    assert device.get("/channels/suzent/whoami").status_code == 200
    assert 'id="token"' not in page(browser, path)
    response = browser.post(path)
    secret = response.content.decode().partition('id="token">')[2][:43]
    assert "no-store" in response["Cache-Control"]
    assert device.get("/channels/suzent/whoami").status_code == 401
    device.token = secret
    assert device.get("/channels/suzent/whoami").status_code == 200
    assert secret not in page(browser, GRANTS) + page(browser, f"{GRANTS}{device.grant.pk}/change/")


def test_a_device_is_asked_from_the_console(browser):
    office()
    with far_device() as far:
        assert browser.post(f"{PEERS}add/", {"base_url": f"{far.url}/", "project": "office"}).status_code == 302
    peer = Peer.objects.get()
    assert (peer.state, peer.base_url) == ("asking", far.url)
    assert "asking" in page(browser, PEERS)


def test_what_is_wrong_with_an_address_is_told_beside_it(browser):
    office()
    response = browser.post(f"{PEERS}add/", {"base_url": "http://h:9/x", "project": "office"})
    assert "no path" in str(response.context["adminform"].form.errors)
    assert not Peer.objects.exists()


def test_a_peer_is_paused_used_offered_and_removed(browser):
    with far_device() as far:
        peer = ready_peer(far)
        shown = page(browser, f"{PEERS}{peer.pk}/change/")
        assert "unverified" in shown
        assert TOKEN not in shown
        act(browser, PEERS, peer.pk, "pause")
        assert Peer.objects.get().state == "paused"
        act(browser, PEERS, peer.pk, "resume")
        assert act(browser, PEERS, peer.pk, "offer") == "Offered."
        assert Peer.objects.get().reverse_grant is not None
        assert act(browser, PEERS, peer.pk, "remove") == "Removed."
    assert not Peer.objects.exists()
    assert DeviceGrant.objects.get().state == "revoked"


def test_adm_08_a_name_that_would_steer_the_reader_is_laid_open(browser):
    request = asked(ODD)
    device = paired(ODD)
    for path in (REQUESTS, f"{REQUESTS}{quote(request.pk)}/change/", GRANTS, f"{GRANTS}{device.grant.pk}/change/"):
        shown = page(browser, path)
        assert "U+202E" in shown
        assert "\u202e" not in shown
        assert "<b>bold" not in shown


def test_who_may_only_look_can_do_nothing():
    device, request = paired(), asked()
    looks = browser_of(onlooker("lou"))
    assert looks.get(GRANTS).status_code == 403
    may = browser_of(operator("mia", may=("view_devicegrant", "view_grantrequest", "view_peer")))
    assert may.get(GRANTS).status_code == 200
    for path, key, name in ((GRANTS, device.grant.pk, "revoke"), (REQUESTS, request.pk, "deny"), (GRANTS, device.grant.pk, "rotate")):
        assert may.post(f"{path}{quote(key)}/{name}/", {"_form_submitted": "True"}).status_code == 403
    assert may.get(f"{PEERS}add/").status_code == 403
    assert DeviceGrant.objects.get().state == "active"


def test_who_may_not_answer_a_request_cannot_learn_its_id():
    """The id is all that the first poll after approval needs."""
    request, device = asked(), paired()
    may = browser_of(operator("mia", may=("view_devicegrant", "view_grantrequest", "view_peer")))
    for path in (REQUESTS, f"{REQUESTS}{quote(request.pk)}/change/", f"{REQUESTS}{quote(request.pk)}/history/"):
        assert may.get(path).status_code == 403
    assert not {request.pk, device.grant.request.pk} & set(re.findall(r"[\w-]{22}", page(may, "/admin/") + page(may, f"{GRANTS}{device.grant.pk}/change/")))
    assert REQUESTS not in page(may, "/admin/")


@pytest.mark.parametrize(("path", "column"), [(GRANTS, "digest"), (PEERS, "request_id"), (PEERS, "sealed_token"), (PEERS, "offered_token")])
def test_no_filter_in_the_address_tells_letter_by_letter_what_no_page_shows(path, column):
    may = browser_of(operator("mia", may=("view_devicegrant", "view_peer")))
    assert may.get(path, {f"{column}__startswith": "a"}).status_code == 400
    assert may.get(path, {f"{column}__gt": "a"}).status_code == 400


def test_the_first_page_counts_the_devices_that_ask(browser):
    def figure():
        return next(figure for figure in browser.get("/admin/").context["figures"] if figure.title == "Devices that ask")

    assert (figure().value, figure().alarming) == ("0", False)
    request = asked()
    assert (figure().value, figure().alarming) == ("1", True)
    grants.deny(request, who="admin", now=database_now())
    assert (figure().value, figure().link) == ("0", REQUESTS)
