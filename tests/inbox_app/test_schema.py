"""The OpenAPI schema is true: no call answers with a status or a body that it does not declare, and none crashes."""

import json

import jsonschema
import pytest
from django.test import Client
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.rest import claimed, delivered

TIED = settings(
    max_examples=40, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@pytest.fixture(scope="module")
def schema():
    return Client().get("/api/schema").json()


def declared(schema, answer, path, method):
    """Whether the answer is one that the schema has for this call."""
    responses = schema["paths"][path][method]["responses"]
    assert str(answer.status_code) in responses, (path, method, answer.status_code, answer.content)
    content = responses[str(answer.status_code)].get("content")
    if content is None:
        assert answer.content == b""
        return True
    shape = content["application/json"]["schema"]
    jsonschema.validate(answer.json(), {**shape, "components": schema["components"]})
    return True


@pytest.fixture
def busy(town):
    """Messages in every state, and a long conversation."""
    town.opened("third")
    town.planner.api.send("writer", "delivered", message_id="m-1")
    delivered(town.writer)
    town.planner.api.send("writer", "running", message_id="m-2", valid_for=600)
    claimed(town.writer)
    town.planner.api.send("third", "withdrawn", message_id="m-3")
    town.planner.api.post("/api/messages/m-3/withdraw")
    town.writer.api.send("third", "pending", message_id="m-4", in_reply_to="m-1")
    return town


def test_what_works_is_declared(schema, busy):
    town = busy
    for path, answer in (
        ("/api/tools", town.planner.api.get("/api/tools")),
        ("/api/messages", town.owner.get("/api/messages", limit=2)),
        ("/api/messages", town.planner.api.get("/api/messages")),
        *(("/api/messages/{message_id}", town.owner.get(f"/api/messages/m-{n}")) for n in (1, 2, 3, 4, 5)),
        ("/api/sessions", town.owner.get("/api/sessions", limit=1)),
        ("/api/sessions/{agent_id}", town.owner.get("/api/sessions/writer")),
        ("/api/sessions/{agent_id}", town.owner.get("/api/sessions/nobody")),
    ):
        assert declared(schema, answer, path, "get")
    for path, answer in (
        ("/api/tools/agent_list", town.planner.api.tool("agent_list", status="recent", limit=1)),
        ("/api/tools/agent_read", town.planner.api.tool("agent_read", agent_id="writer")),
        ("/api/tools/agent_send", town.planner.api.send("writer", "hello")),
        ("/api/tools/agent_stop", town.planner.api.tool("agent_stop", agent_id="writer")),
        ("/api/tools/agent_stop", town.planner.api.tool("agent_stop", agent_id="third")),
        ("/api/messages/{message_id}/retry", town.planner.api.post("/api/messages/m-3/retry")),
        ("/api/messages/{message_id}/withdraw", town.planner.api.post("/api/messages/m-3/withdraw")),
        ("/api/messages/{message_id}/withdraw", town.planner.api.post("/api/messages/m-2/withdraw")),
        ("/api/sessions", town.owner.post("/api/sessions", {"title": "new"})),
    ):
        assert declared(schema, answer, path, "post")
    assert declared(schema, town.owner.patch("/api/sessions/third", {"title": "x"}), "/api/sessions/{agent_id}", "patch")
    assert declared(schema, town.owner.delete("/api/sessions/third"), "/api/sessions/{agent_id}", "delete")
    assert declared(schema, town.owner.patch("/api/sessions/third", {"title": "x"}), "/api/sessions/{agent_id}", "patch")
    assert declared(schema, town.planner.api.send("third", "late"), "/api/tools/agent_send", "post")


@pytest.mark.parametrize("tool", ["agent_list", "agent_read", "agent_send", "agent_stop"])
@TIED
@given(data=st.data())
def test_whatever_a_tool_is_given_it_answers_as_declared(schema, busy, tool, data):
    path = f"/api/tools/{tool}"
    body = data.draw(bodies_for(schema, path, known={"agent_id": ["writer", "planner", "third"], "in_reply_to": ["m-1"]}))
    acting = data.draw(st.sampled_from([busy.planner.api, busy.owner, busy.acting(busy.planner)]))
    assert declared(schema, acting.post(path, body), path, "post")


@pytest.mark.parametrize("path", ["/api/sessions", "/api/messages/{message_id}/withdraw", "/api/messages/{message_id}/retry"])
@TIED
@given(data=st.data())
def test_whatever_is_posted_is_answered_as_declared(schema, busy, path, data):
    body = data.draw(bodies_for(schema, path, known={}))
    answer = busy.owner.post(path.replace("{message_id}", data.draw(st.sampled_from(["m-1", "m-2", "m-3", "m-4", "m-5"]))), body)
    assert declared(schema, answer, path, "post")


@pytest.mark.parametrize("path", ["/api/sessions", "/api/messages", "/api/messages/m-1"])
@TIED
@given(data=st.data())
def test_whatever_a_query_holds_is_answered_as_declared(schema, busy, path, data):
    shown = path.replace("m-1", "{message_id}")
    names = [parameter["name"] for parameter in schema["paths"][shown]["get"]["parameters"] if parameter["in"] == "query"]
    texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.integers(-100, 100).map(str)
    query = data.draw(st.dictionaries(st.sampled_from(names) | st.text(st.characters(exclude_categories=["Cs"]), max_size=5), texts, max_size=3))
    assert declared(schema, busy.owner.get(path, **query), shown, "get")


@TIED
@given(name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30).filter(lambda name: "/" not in name and name not in (".", "..")))
def test_whatever_id_is_in_a_path_is_answered_as_declared(schema, busy, name):
    for shown in ("/api/messages/{message_id}", "/api/sessions/{agent_id}"):
        answer = busy.owner.client.generic("GET", shown.rpartition("/")[0] + "/" + name.replace("%", "%25").replace("?", "%3F").replace("#", "%23"), headers=busy.owner.headers())
        assert answer.status_code in (200, 404)
        assert json.loads(answer.content)


def bodies_for(schema, path, *, known):
    """Bodies with the call's own fields, right and wrong, and some of their own."""
    shape = schema["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    names = list(schema["components"]["schemas"][shape["$ref"].rpartition("/")[2]]["properties"])
    values = {name: st.sampled_from(known[name]) | JSON if name in known else JSON for name in names}
    return st.fixed_dictionaries({}, optional=values) | st.dictionaries(st.text(max_size=8), JSON, max_size=2)
