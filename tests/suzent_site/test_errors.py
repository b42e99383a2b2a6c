"""The one family of errors and its JSON shape."""

from suzent_site.errors import Conflict, Invalid, NotFound


def test_an_error_has_code_detail_and_extra():
    assert Conflict("It runs.", agent_id="a").as_json() == {"code": "conflict", "detail": "It runs.", "extra": {"agent_id": "a"}}


def test_the_docstring_is_the_default_sentence():
    assert NotFound().as_json() == {"code": "not_found", "detail": "There is nothing here by that name.", "extra": {}}


def test_an_invalid_request_names_its_field():
    error = Invalid("title", "is too long")
    assert (error.status, error.detail, error.extra) == (400, "title: is too long", {"field": "title"})


def test_the_console_is_found_without_its_slash(client):
    assert client.get("/admin").status_code == 302
