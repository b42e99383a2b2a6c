"""Black holes among the peers: local mail and a healthy peer do not notice them."""

import time

import pytest

from inbox_app import transitions
from inbox_app.deliveries import Draft, RemoteTarget
from inbox_app.models import Message
from inbox_app.shift import Shift
from sessions_app.clock import database_now
from sessions_app.holder import LaneHolder
from sessions_app.models import Holder
from suzent_site.outbound import Timeouts
from tests.peers_app.peer_091 import peer_091
from tests.peers_app.test_delivery import pair
from tests.wire import wire

pytestmark = pytest.mark.django_db(transaction=True)

HOLES, EACH = 8, 40


def test_eight_black_holes_with_40_messages_each_slow_neither_local_mail_nor_a_healthy_peer(town, settings, monkeypatch):
    """Their threads wait out the time-outs (6 s here) while all the other mail goes through."""
    monkeypatch.setattr("peers_app.client.DELIVERY", Timeouts(connect=1, read=6, total=6))
    with wire(lambda peer, request: hole.released.wait(20), host="0.0.0.0") as hole, peer_091() as healthy:
        for number in range(HOLES):
            swallowing = pair(town, f"http://127.0.0.{number + 2}:{hole.port}", name=f"hole {number}")
            for message in range(EACH):
                queue(town, swallowing, f"{message}")
        well = pair(town, healthy.url)
        for message in range(20):
            town.planner.api.send(well.agent_id, f"{message}")
            town.planner.api.send("writer", f"{message}")
        others = Message.objects.exclude(target__in=[message.target for message in Message.objects.filter(content="39")])
        with LaneHolder(Holder.Kind.SHIFT) as holder:
            shift = Shift(holder, nursery=None)
            began = time.monotonic()
            while others.unsettled().exists() and time.monotonic() - began < 30:
                shift.step()
                shift.rest(0.01)
            seconds = time.monotonic() - began
            in_hand = Message.objects.processing().count()
            hole.released.set()
            shift.leave()
    assert (others.delivered().count(), in_hand) == (40, HOLES)
    assert list(healthy.stored.values()) == [str(number) for number in range(20)]
    assert healthy.most_at_once == 1
    assert seconds < 5  # less than one time-out: nothing waited for a black hole


def queue(town, peer, content):
    draft = Draft(
        project_id=town.project.pk, target=RemoteTarget(peer.agent_id, town.project.pk), content=content,
        kind=Message.Kind.AGENT_MESSAGE, sender_id=town.planner.id,
    )  # fmt: skip
    transitions.accept(draft, now=database_now())


def test_many_black_holes_leave_half_of_the_threads_to_others(town, settings, monkeypatch):
    settings.SUZENT_TURN_CONCURRENCY = 4
    monkeypatch.setattr("peers_app.client.DELIVERY", Timeouts(connect=1, read=6, total=6))
    with wire(lambda peer, request: hole.released.wait(20), host="0.0.0.0") as hole:
        for number in range(6):
            town.planner.api.send(pair(town, f"http://127.0.0.{number + 2}:{hole.port}", name=f"hole {number}").agent_id, "hello")
        for message in range(10):
            town.planner.api.send("writer", f"{message}")
        local = Message.objects.filter(transport="local")
        with LaneHolder(Holder.Kind.SHIFT) as holder:
            shift = Shift(holder, nursery=None)
            began = time.monotonic()
            while local.unsettled().exists() and time.monotonic() - began < 30:
                shift.step()
                shift.rest(0.01)
            assert (local.delivered().count(), Message.objects.processing().count()) == (10, 2)
            hole.released.set()
            shift.leave()
