"""The OpenAPI schema is true: whatever schemathesis makes of it, no call crashes, answers undeclared or takes what it forbids.

Every operation is covered as soon as the schema has it. What one needs to be answered well (ids that exist) is added to
``KNOWN`` and to ``busy``. Each call is undone, so every one meets the same rows, and the seed is fixed: see conftest.
"""

from collections.abc import MutableMapping
from random import Random
from unittest import mock

import pytest
import schemathesis
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections, transaction
from drf_spectacular.generators import SchemaGenerator
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS
from schemathesis.core.parameters import ParameterLocation as Place

from tests.factories import CronJobFactory
from tests.rest import claimed, delivered

schema = schemathesis.openapi.from_dict(SchemaGenerator().get_schema(request=None, public=True))
schema.config.generation.update(with_security_parameters=False)  # who calls is said below
application = get_wsgi_application()

KNOWN = {
    "agent_id": ("planner", "writer", "third"),
    "X-Suzent-Agent": ("planner",),
    "message_id": ("m-1", "m-2", "m-3", "m-4"),
    "in_reply_to": ("m-1", "m-2", "m-3", "m-4"),
    "project": ("demo",),
    "job_id": ("0123456789ab",),
}
CALLERS = ("project", "session", "operator")
CSRF = "a" * 32
LEFT_OUT = [
    CHECKS.get_one("ignored_auth"),  # it calls again without a token, and our headers give it one: test_authentication.py
    CHECKS.get_one("positive_data_acceptance"),  # rules about several fields, or about rows, are in no schema
]
SEEDED = settings(max_examples=10, suppress_health_check=list(HealthCheck))


@schema.parametrize()
@SEEDED
def test_whatever_a_call_is_given_it_answers_as_declared(case, busy, credentials):
    """TXT-01, SND-12: NUL, lone surrogates, blanks, wrong types, missing and unknown fields, every length at its bound."""
    put_known_ids_into(case)
    who = chosen(case, CALLERS, why="caller")
    with undone():
        answer = case.call(app=application, **credentials[who])
    case.validate_response(answer, excluded_checks=LEFT_OUT)


@pytest.fixture
def busy(town):
    """Messages in every state."""
    town.opened("third")
    town.planner.api.send("writer", "delivered", message_id="m-1")
    delivered(town.writer)
    town.planner.api.send("writer", "running", message_id="m-2", valid_for=600)
    claimed(town.writer)
    town.planner.api.send("third", "withdrawn", message_id="m-3")
    town.planner.api.post("/api/messages/m-3/withdraw")
    town.writer.api.send("third", "pending", message_id="m-4", in_reply_to="m-1")
    with mock.patch("secrets.token_hex", return_value=KNOWN["job_id"][0]):
        CronJobFactory(project=town.project)
    return town


@pytest.fixture
def credentials(busy, operator, in_this_connection):
    """What ``Case.call`` is given to call as each of the three."""
    login = operator.client.cookies["sessionid"].value
    return {
        "project": {"headers": {"Authorization": f"Bearer {busy.owner.token}"}},
        "session": {"headers": {"Authorization": f"Bearer {busy.planner.api.token}"}},
        "operator": {"headers": {"X-CSRFToken": CSRF}, "cookies": {"sessionid": login, "csrftoken": CSRF}},
    }


@pytest.fixture
def in_this_connection():
    """Requests use the test's own connection and leave it open, as those of Django's test client do."""
    for signal in (request_started, request_finished):
        signal.disconnect(close_old_connections)
    yield
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


def put_known_ids_into(case):
    """Three of four times, and only where the schema-valid is asked for: otherwise nearly every answer would be a 404."""
    if chosen(case, (False, True, True, True), why="known"):
        for place in (Place.PATH, Place.QUERY, Place.HEADER, Place.BODY):
            values = getattr(case, place.container_name)
            if isinstance(values, MutableMapping) and not case.meta.is_negative_at(place):
                values.update({name: chosen(case, KNOWN[name], why=name) for name in values if name in KNOWN})


def chosen(case, options, *, why):
    """One of the options, always the same for the same case: hypothesis has no say in it and must find it again."""
    given = (why, case.method, case.path, case.path_parameters, case.query, case.headers, case.body)
    return Random(ascii(given)).choice(options)


def undone():
    """A transaction that is rolled back, and in which the product may open its outermost ones as in a test case's."""
    block = _Undone()
    block._from_testcase = True
    return block


class _Undone(transaction.Atomic):
    def __init__(self):
        super().__init__(using=None, savepoint=True, durable=False)

    def __exit__(self, *error):
        transaction.set_rollback(True)
        super().__exit__(*error)
