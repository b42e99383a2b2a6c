"""Waiting for a message to settle, through the product's own ASGI application."""

import asyncio
import threading
import time

import pytest
from asgiref.sync import sync_to_async
from django.db import connections

from inbox_app import long_poll
from tests.asgi import Gone, ask, stop
from tests.rest import delivered

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def sent(town):
    town.planner.api.send("writer", "hello", message_id="m-1")


def play(scenario):
    """Run it, then let the connections close, so that the test database can be dropped."""

    async def whole():
        await scenario()
        await asyncio.sleep(long_poll.POLL_SECONDS * 3)
        await stop()

    asyncio.run(whole())


def in_a_thread(act, *arguments):
    def once():
        try:
            return act(*arguments)
        finally:
            connections.close_all()

    return sync_to_async(once, thread_sensitive=False)()


def test_a_waiter_hears_of_the_settled_message_at_once(town, sent):
    async def scenario():
        waiter = asyncio.create_task(ask("GET", "/api/messages/m-1", query="wait=30", token=town.planner.api.token))
        await asyncio.sleep(0.3)
        assert not waiter.done()
        await in_a_thread(delivered, town.writer)
        begun = time.monotonic()
        answer = await waiter
        assert (answer.status, answer.json()["status"]) == (200, "delivered")
        assert time.monotonic() - begun < 5

    play(scenario)


def test_a_wait_ends_with_its_seconds_and_says_how_far_it_is(town, sent):
    async def scenario():
        begun = time.monotonic()
        answer = await ask("GET", "/api/messages/m-1", query="wait=1", token=town.planner.api.token)
        assert (answer.json()["status"], answer.json()["waiting_for"]) == ("pending", "the dispatcher")
        assert 1 <= time.monotonic() - begun < 5

    play(scenario)


def test_a_settled_message_is_not_waited_for(town, sent):
    delivered(town.writer)

    async def scenario():
        begun = time.monotonic()
        answer = await ask("GET", "/api/messages/m-1", query="wait=60", token=town.planner.api.token)
        assert answer.json()["status"] == "delivered"
        assert time.monotonic() - begun < 5

    play(scenario)


def test_three_hundred_waiters_hold_no_threads_and_sends_go_on(town, sent):
    async def scenario():
        await ask("GET", "/api/messages/m-1", token=town.planner.api.token)
        waiters = [
            asyncio.create_task(ask("GET", "/api/messages/m-1", query="wait=60", token=town.planner.api.token)) for _ in range(300)
        ]
        await asyncio.sleep(3)
        assert threading.active_count() < 40
        body = b'{"agent_id": "planner", "message": "still there?"}'
        assert (await ask("POST", "/api/tools/agent_send", body=body, token=town.writer.api.token)).status == 202
        await in_a_thread(delivered, town.writer)
        answers = await asyncio.wait_for(asyncio.gather(*waiters), 60)
        assert {answer.json()["status"] for answer in answers} == {"delivered"}

    play(scenario)


def test_a_client_that_goes_away_is_forgotten_and_the_poller_ends(town, sent):
    async def scenario():
        hang_up = asyncio.Event()
        waiter = asyncio.create_task(
            ask("GET", "/api/messages/m-1", query="wait=60", token=town.planner.api.token, hang_up=hang_up)
        )
        await asyncio.sleep(0.5)
        assert long_poll.waiters() == 1
        hang_up.set()
        with pytest.raises(Gone):
            await asyncio.wait_for(waiter, 5)
        assert long_poll.waiters() == 0

    play(scenario)
