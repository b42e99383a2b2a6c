"""A device of version 0.9.1 pairs with us, sends, reads, streams and is revoked, and notices no difference."""

import asyncio

import pytest
from django.db import connections

from inbox_app.models import Message
from peers_app import grants
from peers_app.models import DeviceGrant, GrantRequest
from sessions_app import direct
from sessions_app.clock import database_now
from tests.asgi import stop
from tests.factories import delivered
from tests.peers_app.old_suzent import OldSuzent
from tests.people import office

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def server_ends():
    yield
    direct.close_web()


def play(scenario):
    async def whole():
        await scenario()
        await stop()

    asyncio.run(whole())


async def here(act):
    """What happens on our side meanwhile, in a thread that leaves no connection behind."""

    def once():
        try:
            act()
        finally:
            connections.close_all()

    await asyncio.to_thread(once)


def approve():
    grants.approve(GrantRequest.objects.get(), project=office(), who="olga", now=database_now())


def revoke():
    grants.revoke(DeviceGrant.objects.get(), now=database_now())


def turn():
    delivered(Message.objects.get(lane__isnull=False), reply="ok: Hello.")


def test_it_pairs_sends_reads_streams_and_learns_that_it_was_revoked():
    old = OldSuzent()

    async def scenario():
        assert await old.asks() == "pending"
        assert await old.polls() == "pending"
        await here(approve)
        assert await old.polls() == "approved"
        assert (len(old.token), len(old.node_identity)) == (43, 32)
        assert not await old.is_revoked()
        assert await old.delivers("m-1", "Hello.")
        assert not await old.stops()
        await here(turn)
        assert [line["text"] for line in (await old.reads())["messages"]] == ["Hello.", "ok: Hello."]
        said = await old.streams("And now?")
        assert (said[0]["type"], said[-1]["type"]) == ("RUN_STARTED", "RUN_FINISHED")
        assert "".join(event.get("delta", "") for event in said) == "ok: And now?"
        await here(revoke)
        assert await old.is_revoked()

    play(scenario)
    assert GrantRequest.objects.get().controller_addr == "http://192.0.2.9:25314"


def test_per_01_answers_that_get_lost_make_no_second_message():
    old = OldSuzent()

    async def scenario():
        await old.asks()
        await here(approve)
        await old.polls()
        for number in range(10):
            old.fails = 2
            assert await old.delivers(f"m-{number}", f"Number {number}.")

    play(scenario)
    assert old.tried == [202] * 30
    assert list(Message.objects.order_by("id").values_list("content", flat=True)) == [f"Number {number}." for number in range(10)]
