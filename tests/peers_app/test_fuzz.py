"""Whatever is sent to the paths of the protocol, no answer is a 5xx and every error has the one shape."""

import json
import string
from datetime import timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from peers_app.models import GrantRequest
from sessions_app.clock import database_now
from tests.peers_app.pairing import Device, paired

pytestmark = pytest.mark.django_db

OPEN = ["/nodes/grant-request", "/channels/suzent/grant-changed", "/channels/suzent/proof"]
CLOSED = ["/channels/suzent/inbox", "/channels/suzent/stop", "/nodes/peer-offer", "/channels/suzent/inbound", "/channels/suzent/else"]
NAMES = [
    "message_id", "content", "controller_name", "controller_addr", "controller_identity", "base_url", "token", "name", "chat_id", "attachments", "url",
    "size", "media_type", "handle", "nonce",
]  # fmt: skip
texts = st.one_of(
    st.text(max_size=40), st.sampled_from(["http://b:9", "http://[::1]:9", "suzent:x", "a" * 64, "ws://h", "http://h\r\n", "\x00", "\ud800", "f" * 64, "🙂" * 9]),
)  # fmt: skip
values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=True), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.one_of(st.sampled_from(NAMES), texts), inner, max_size=4)),
    max_leaves=8,
)
bodies = st.one_of(
    st.binary(max_size=60), values.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(st.sampled_from(NAMES), values, max_size=6).map(lambda value: json.dumps(value).encode()),
)  # fmt: skip
headers = st.dictionaries(
    st.sampled_from(["x-suzent-hops", "x-forwarded-for", "content-type", "accept", "x-suzent-token", "origin"]),
    st.text(alphabet=string.printable.strip() + "é ", max_size=30), max_size=3,
)  # fmt: skip
quietly = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def sound(response):
    assert response.status_code < 500, response.content
    body = response.json()
    if response.status_code >= 400:
        assert set(body) == {"error"}
        assert isinstance(body["error"], str)
        assert body["error"]
    return True


@quietly
@given(st.sampled_from(OPEN + CLOSED), bodies, headers)
def test_a_stranger_gets_an_answer_of_the_protocol(path, body, sent):
    GrantRequest.objects.all().delete()
    response = Device(headers=sent).post(path, raw=body)
    assert sound(response)
    assert path in OPEN or response.status_code == 401


@quietly
@given(st.sampled_from(CLOSED), bodies.filter(lambda body: b'"content"' not in body or b'"message_id"' in body), headers)
def test_a_device_gets_an_answer_of_the_protocol(path, body, sent):
    if path.endswith("inbound"):
        body = body.replace(b'"content"', b'"contents"')  # what is refused at once; a stream is another test's
    sent.pop("x-suzent-token", None)
    device = paired()
    device.headers = sent
    GrantRequest.objects.filter(grant=None).delete()
    GrantRequest.objects.update(created_at=database_now() - timedelta(hours=1))  # or there would be too many of them
    assert sound(device.post(path, raw=body))


@quietly
@given(st.sampled_from(["/nodes/grant-status/", "/channels/suzent/", "/nodes/", "/channels/"]), st.text(min_size=1, max_size=30))
def test_any_path_gets_an_answer_of_the_protocol(begin, rest):
    for method in ("get", "post"):
        response = getattr(Device().client, method)(begin + "".join(f"%{byte:02x}" for byte in rest.encode("utf-8", "surrogatepass")))
        assert response.status_code < 500
