"""Who is calling: tokens, operators, and every odd Authorization header."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from sessions_app.actions import archive_session, mint_token, revoke_token
from sessions_app.models import ApiToken
from tests.rest import ONLOOKER, OPERATOR, Api, refused, staff


def asked_with(header):
    return Client().get("/api/tools", headers={"Authorization": header})


def test_without_credentials_it_is_401_and_says_how(town):
    answer = Api().get("/api/tools")
    assert refused(answer, 401, code="not_authenticated")
    assert answer["WWW-Authenticate"].startswith("Bearer")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_is_read_in_any_case(town, scheme):
    assert asked_with(f"{scheme} {town.planner.api.token}").status_code == 200


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Bearer",
        "Bearer ",
        "Bearer\t{token}",
        "Bearer {token} {token}",
        "Bearer {token},Bearer {token}",
        "Bearer {token}\n",
        "Bearer {token}\0",
        "Bearer {token}é",
        "Bearer \xff\xfe",
        "Bearer \N{GRINNING FACE}",
        "Bearer \udce9",
        "Bearer " + "x" * 1_048_576,
        "Basic b2xnYTp4",
        "Token {token}",
        "{token}",
        "Bearer wrong",
    ],
    ids=lambda header: repr(header[:20]),
)
def test_an_odd_header_is_401_never_500(town, header):
    assert refused(asked_with(header.replace("{token}", town.planner.api.token)), 401, code="invalid_token")


def test_a_token_in_the_query_is_not_looked_at(town):
    assert refused(Client().get("/api/tools", {"token": town.planner.api.token}), 401)


def test_an_expired_a_revoked_and_an_archived_projects_token_are_refused(town):
    now = timezone.now()
    expired = mint_token(town.project, now=now, expires_at=now - timedelta(seconds=1))
    revoked = mint_token(town.project, now=now)
    revoke_token(revoked.token, now=now)
    assert refused(Api(expired.secret).get("/api/tools"), 401)
    assert refused(Api(revoked.secret).get("/api/tools"), 401)
    town.project.archived_at = now
    town.project.save(update_fields=["archived_at"])
    assert refused(town.planner.api.get("/api/tools"), 401)


def test_use_is_noted_once_a_minute_so_that_reading_does_not_write(town):
    town.planner.api.get("/api/tools")
    first = ApiToken.objects.get(session=town.planner.session).last_used_at
    with CaptureQueriesContext(connection) as queries:
        town.planner.api.get("/api/tools")
    assert first is not None
    assert not [query for query in queries if query["sql"].startswith("UPDATE")]


def test_a_wrong_token_is_not_rescued_by_a_login(operator):
    operator.token = "wrong"
    assert refused(operator.get("/api/tools"), 401, code="invalid_token")


def test_an_operator_reads_with_a_login(operator):
    assert operator.get("/api/tools").status_code == 200


def test_a_login_without_staff_rights_is_nobody(db, django_user_model):
    client = Client()
    client.force_login(django_user_model.objects.create_user("visitor"))
    assert refused(client.get("/api/tools"), 401, code="not_authenticated")


def test_an_operators_write_needs_the_csrf_token(town, django_user_model):
    client = Client(enforce_csrf_checks=True)
    client.force_login(staff(django_user_model, "olga", OPERATOR))
    body = {"agent_id": "planner", "message": "hello"}
    assert refused(client.post("/api/tools/agent_send", body, content_type="application/json"), 403, code="csrf_failed")
    client.cookies["csrftoken"] = "a" * 32
    answer = client.post(
        "/api/tools/agent_send", body, content_type="application/json", headers={"X-CSRFToken": "a" * 32}
    )
    assert answer.status_code == 202


def test_a_token_needs_no_csrf(town):
    town.planner.api.client = Client(enforce_csrf_checks=True)
    assert town.planner.api.send("writer", "hello").status_code == 202


def test_an_archived_session_acts_no_more(town):
    archive_session(town.planner.session, now=timezone.now())
    assert refused(town.planner.api.send("writer", "still here"), 403, code="archived")
    assert refused(town.acting(town.planner).send("writer", "still here"), 403, code="archived")


def test_sec_02_a_login_has_no_more_rights_here_than_in_the_console(town, django_user_model):
    for name, rights, reads in (("otto", ONLOOKER, 200), ("nils", (), 403)):
        client = Client()
        client.force_login(staff(django_user_model, name, rights))
        api = Api(client=client)
        assert api.get("/api/messages").status_code == api.get("/api/sessions").status_code == reads
        assert refused(api.send("planner", "hello"), 403, code="forbidden")
        assert refused(client.delete("/api/sessions/planner"), 403, code="forbidden")
        assert refused(client.post("/api/sessions", {"project": town.project.slug}, content_type="application/json"), 403)
    town.planner.session.refresh_from_db()
    assert town.planner.session.archived_at is None
