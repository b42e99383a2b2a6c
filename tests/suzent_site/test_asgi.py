"""The ASGI application: bodies past the limit, bodies without a length, few threads."""

import asyncio
import json
import threading

import pytest

from suzent_site.asgi import THREADS
from tests.asgi import ask, stop
from tests.rest import refused

pytestmark = pytest.mark.django_db(transaction=True)
BODY_LIMIT = 1024 * 1024  # bytes


@pytest.fixture(autouse=True)
def stopped():
    yield
    asyncio.run(stop())


class Shaped:
    """An answer as ``refused`` reads it."""

    def __init__(self, answer):
        self.status_code, self.json = answer.status, answer.json


def post(town, **body):
    return asyncio.run(ask("POST", "/api/tools/agent_send", token=town.planner.api.token, **body))


def test_a_body_in_chunks_without_a_length_is_read_whole(town):
    body = json.dumps({"agent_id": "writer", "message": "in parts"}).encode()
    assert post(town, chunks=[body[:10], body[10:11], b"", body[11:]]).status == 202


def test_an_announced_body_past_the_limit_is_413(town):
    assert refused(Shaped(post(town, body=b"x" * (BODY_LIMIT + 1))), 413, code="too_large")


def test_a_body_that_grows_past_the_limit_in_chunks_is_413(town):
    assert refused(Shaped(post(town, chunks=[b"x" * 65_536] * 32)), 413, code="too_large")


def test_a_body_that_just_fits_is_read(town):
    body = b'{"agent_id": "writer", "message": "hello"' + b" " * (BODY_LIMIT - 42) + b"}"
    assert len(body) == BODY_LIMIT
    assert post(town, body=body).status == 202
    assert post(town, chunks=[body]).status == 202


def test_many_requests_at_once_share_a_few_threads(town):
    async def scenario():
        answers = await asyncio.gather(*(ask("GET", "/api/tools", token=town.planner.api.token) for _ in range(100)))
        assert {answer.status for answer in answers} == {200}

    asyncio.run(scenario())
    assert len([thread for thread in threading.enumerate() if thread.name.startswith("desk-")]) <= THREADS


@pytest.mark.parametrize("header", [b"Bearer \xff\xfe", b"Bearer caf\xc3\xa9", b"\x00", b"Bearer " + b"x" * 1_000_000])
def test_an_odd_header_in_bytes_is_401(town, header):
    answer = asyncio.run(ask("GET", "/api/tools", headers=[(b"authorization", header)]))
    assert refused(Shaped(answer), 401)


@pytest.mark.parametrize("length", [b"-1", b"x", b"1e3", b""])
def test_an_unreadable_length_is_no_crash(town, length):
    answer = asyncio.run(
        ask("POST", "/api/tools/agent_send", token=town.planner.api.token, headers=[(b"content-length", length)], body=b"")
    )
    assert answer.status in (400, 415)
