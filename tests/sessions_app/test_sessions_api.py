"""Sessions over REST, and the one shape of every error."""

import pytest
from django.test import Client

from sessions_app.models import Session
from tests.rest import Api, refused


def test_a_project_opens_a_session_and_gets_its_token_once(town):
    made = town.owner.post("/api/sessions", {"agent_id": "scout", "title": "Scout", "config": {"model": "x"}})
    assert made.status_code == 201
    scout = Api(made.json()["token"])
    read = scout.get("/api/sessions/scout")
    assert read.status_code == 200
    assert read.json() == {key: value for key, value in made.json().items() if key != "token"}
    assert read.json()["status"] == "idle"


def test_an_id_is_made_if_none_is_given(town):
    assert town.owner.post("/api/sessions").json()["agent_id"].startswith("ses_")


def test_an_id_is_taken_once(town):
    assert refused(town.owner.post("/api/sessions", {"agent_id": "planner"}), 409, code="id_taken")
    assert refused(town.owner.post("/api/sessions", {"agent_id": "stranger"}), 409, code="id_taken")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"agent_id": ""}, "agent_id"),
        ({"agent_id": None}, "agent_id"),
        ({"agent_id": " a"}, "agent_id"),
        ({"agent_id": "a\n"}, "agent_id"),
        ({"agent_id": "x" * 129}, "agent_id"),
        ({"agent_id": "ses_mine"}, "agent_id"),
        ({"agent_id": "peer:a"}, "agent_id"),
        ({"agent_id": 7}, "agent_id"),
        ({"title": "x" * 201}, "title"),
        ({"config": {"model": ["x"]}}, "config.model"),
        ({"config": {"model": 0}}, "config.model"),
        ({"title": 7}, "title"),
        ({"title": None}, "title"),
        ({"runtime": "gpt"}, "runtime"),
        ({"runtime": ""}, "runtime"),
        ({"config": []}, "config"),
        ({"config": "x"}, "config"),
        ({"config": {"a": "x" * 70_000}}, "config"),
        ({"project": ""}, "project"),
        ({"colour": "red"}, "colour"),
        ({"kind": "cron"}, "kind"),
    ],
    ids=str,
)
def test_a_bad_field_is_named_and_nothing_is_made(town, body, field):
    before = Session.objects.count()
    assert refused(town.owner.post("/api/sessions", body), 400, code="invalid", field=field)
    assert Session.objects.count() == before


def test_a_session_token_reads_its_own_session_only(town):
    assert town.planner.api.get("/api/sessions/planner").status_code == 200
    assert refused(town.planner.api.get("/api/sessions/writer"), 404)
    assert [s["agent_id"] for s in town.planner.api.get("/api/sessions").json()["sessions"]] == ["planner"]


@pytest.mark.parametrize("call", [
    lambda api: api.post("/api/sessions", {}),
    lambda api: api.patch("/api/sessions/planner", {"title": "Boss"}),
    lambda api: api.delete("/api/sessions/planner"),
    lambda api: api.delete("/api/sessions/writer"),
])  # fmt: skip
def test_a_session_token_manages_nothing(town, call):
    assert refused(call(town.planner.api), 403, code="forbidden")


@pytest.mark.parametrize("agent_id", ["stranger", "missing", "x" * 400, "%00", "%F0%9F%98%80", "writer%20", "WRITER"])
def test_a_foreign_and_a_missing_session_are_the_very_same_404(town, agent_id):
    bodies = {
        call(f"/api/sessions/{agent_id}").content
        for call in (town.owner.get, lambda path: town.owner.patch(path, {}), town.owner.delete)
    }
    assert bodies == {town.owner.get("/api/sessions/nobody").content}


def test_a_patch_changes_what_it_names(town):
    changed = town.owner.patch("/api/sessions/planner", {"title": "Boss", "runtime": "scripted", "config": {"a": 1}})
    assert changed.status_code == 200
    assert {"title": "Boss", "runtime": "scripted", "config": {"a": 1}}.items() <= changed.json().items()
    assert town.owner.patch("/api/sessions/planner", {}).json()["title"] == "Boss"


def test_delete_archives_and_is_safe_to_repeat(town):
    assert town.owner.delete("/api/sessions/planner").status_code == 204
    assert town.owner.delete("/api/sessions/planner").status_code == 204
    assert town.owner.get("/api/sessions/planner").json()["status"] == "archived"
    assert refused(town.owner.patch("/api/sessions/planner", {"title": "back"}), 410)
    assert refused(town.owner.post("/api/sessions", {"agent_id": "planner"}), 409, code="id_taken")
    listed = town.owner.get("/api/sessions", archived="true").json()["sessions"]
    assert [session["agent_id"] for session in listed] == ["planner"]


def test_pages_follow_their_cursor_and_end(town):
    first = town.owner.get("/api/sessions", limit=1).json()
    second = town.owner.get("/api/sessions", limit=1, cursor=first["next_cursor"]).json()
    assert [s["agent_id"] for s in first["sessions"] + second["sessions"]] == ["writer", "planner"]
    assert (second["has_more"], second["next_cursor"]) == (False, None)


@pytest.mark.parametrize("query", [
    {"limit": 0}, {"limit": 51}, {"limit": "x"}, {"cursor": "x"}, {"cursor": "\0"}, {"archived": "maybe"}, {"color": 1},
    {"limit": "9" * 5000},
])  # fmt: skip
def test_a_bad_query_is_named(town, query):
    assert refused(town.owner.get("/api/sessions", **query), 400, field=next(iter(query)))


def test_an_operator_reaches_every_project_and_names_one_to_create(town, operator):
    assert {s["agent_id"] for s in operator.get("/api/sessions").json()["sessions"]} == {"planner", "writer", "stranger"}
    assert [s["agent_id"] for s in operator.get("/api/sessions", project="elsewhere").json()["sessions"]] == ["stranger"]
    assert refused(operator.post("/api/sessions", {}), 400, field="project")
    assert operator.post("/api/sessions", {"project": "demo"}).status_code == 201
    assert refused(operator.post("/api/sessions", {"project": "missing"}), 404)


def test_a_project_token_cannot_name_another_project(town):
    assert refused(town.owner.post("/api/sessions", {"project": "elsewhere"}), 404)
    assert refused(town.owner.get("/api/sessions", project="elsewhere"), 404)


def test_internal_sessions_are_hidden(town):
    town.opened("dreamer", kind=Session.Kind.DREAM)
    assert refused(town.owner.get("/api/sessions/dreamer"), 404)
    assert "dreamer" not in str(town.owner.get("/api/sessions").json())


@pytest.mark.parametrize("path", ["/api", "/api/", "/api/nothing", "/api/tools/agent_fly", "/api/sessions/a/b", "/api/%00"])
def test_an_unknown_url_below_api_answers_in_our_shape(town, path):
    assert refused(Client().get(path), 404, code="not_found")


def test_another_unknown_url_is_a_page(db):
    assert not Client().get("/nothing")["Content-Type"].startswith("application/json")


def test_a_method_that_a_url_does_not_know_is_405(town):
    answer = town.owner.delete("/api/tools")
    assert refused(answer, 405, code="method_not_allowed")
    assert answer["Allow"] == "GET, HEAD"


@pytest.mark.parametrize("content_type", [
    "text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "application/xml", "nonsense",
])  # fmt: skip
def test_another_content_type_is_415(town, content_type):
    assert refused(town.owner.raw("/api/sessions", "a=1", content_type=content_type), 415, code="unsupported_media_type")


def test_a_content_type_may_name_its_charset(town):
    assert town.owner.raw("/api/sessions", "{}", content_type="application/json; charset=utf-8").status_code == 201


def test_a_body_over_one_mebibyte_is_413(town):
    body = '{"title": "' + "x" * 1_048_576 + '"}'
    assert refused(town.owner.raw("/api/sessions", body), 413, code="too_large")


def test_the_accept_header_changes_nothing(town):
    answer = town.owner.client.get("/api/sessions", {"format": "xml"}, headers={"Accept": "text/html", **town.owner.headers()})
    assert refused(answer, 400, field="format")
    assert town.owner.client.get("/api/tools", headers={"Accept": "image/png", **town.owner.headers()}).status_code == 200


def test_a_crash_below_api_is_500_in_our_shape(town, settings):
    settings.ROOT_URLCONF = "tests.sessions_app.crashing_urls"
    client = Client(raise_request_exception=False)
    assert refused(client.get("/api/crash"), 500, code="error")


@pytest.mark.parametrize("path", ["/api/tools", "/api/sessions", "/api/messages", "/api/sessions/planner", "/api/schema", "/api/docs"])
def test_a_trailing_slash_is_optional(town, path):
    assert town.owner.get(path).status_code == town.owner.get(f"{path}/").status_code == 200


def test_the_schema_declares_every_call_and_the_error_shape(db):
    schema = Client().get("/api/schema").json()
    assert "/api/tools/agent_send" in schema["paths"]
    assert not [path for path in schema["paths"] if path.endswith("/")]
    assert set(schema["components"]["schemas"]["Error"]["required"]) == {"code", "detail", "extra"}
    assert set(schema["components"]["securitySchemes"]) == {"token", "operator"}


def test_the_docs_need_no_outside_host(db):
    page = Client().get("/api/docs").content.decode()
    assert "swagger" in page
    assert "https://" not in page


def test_the_root_leads_operators_to_the_console(db):
    assert Client().get("/")["Location"] == "/admin/"
