"""LOP-03: an agent here and one on a paired device answer each other's mail; the chain ends, whatever the device says of it."""

from datetime import timedelta

import pytest

from inbox_app.models import Message
from peers_app.models import Peer
from sessions_app.clock import database_now
from sessions_app.models import Turn
from sessions_app.runtimes.base import Runtime, TurnResult
from suzent_site.errors import SuzentError
from tests.peers_app.pairing import paired
from tests.peers_app.peer_091 import peer_091
from tests.peers_app.test_delivery import pair, try_once
from tests.rest import Agent, delivered

pytestmark = pytest.mark.django_db

MOST = 6  # SUZENT_MAX_HOPS here
ENOUGH = 20  # rounds: a ring that goes on for so long has no end


class AnswersBack(Runtime):
    """Writes to the one peer that there is, whatever it is told."""

    def run(self, turn):
        try:
            turn.tools.call("agent_send", agent_id=Peer.objects.get().agent_id, message="And you?")
        except SuzentError as error:
            return TurnResult(f"silent: {error.code}")
        return TurnResult("answered")


class Ring:
    """A device that drives a session here which may use ``agent_send``, and is a peer of ours too."""

    def __init__(self, town, there):
        town.project.runtimes = ["AnswersBack"]
        town.project.save()
        self.there = there
        self.device = paired(project=town.project, runtime="AnswersBack", tools=["agent_send"])
        self.peer = pair(town, there.url, reverse_grant=self.device.grant)

    def goes_round(self, *, claims):
        """Until somebody is silent: the turns of both sides together. ``claims``: the device's header, from the one it got."""
        first = Turn.objects.count()
        taken_before = len(self.there.stored)
        answer = self._sends()
        for _ in range(ENOUGH):
            taken = len(self.there.stored)
            if answer.status_code != 202:
                break
            delivered(Agent(self._session(), None))
            try_once()
            if len(self.there.stored) == taken:
                break
            answer = self._sends(claims(self.there.hops[-1]))
        return Turn.objects.count() - first + len(self.there.stored) - taken_before

    def _sends(self, hops=None):
        headers = {} if hops is None else {"x-suzent-hops": hops}
        return self.device.send(f"m-{Message.objects.count()}", "And you?", **headers)

    def _session(self):
        return Message.objects.filter(target=self.device.agent_id).latest("pk").session


@pytest.fixture
def ring(town, settings):
    settings.SUZENT_MAX_HOPS = MOST
    settings.RUNTIMES = {**settings.RUNTIMES, "AnswersBack": f"{__name__}.AnswersBack"}
    with peer_091() as there:
        yield Ring(town, there)


def as_one_of_ours(hops):
    return str(int(hops) + 1)


def test_lop_03_a_ring_across_two_installations_is_as_long_as_one_within(ring):
    assert ring.goes_round(claims=as_one_of_ours) == MOST + 1  # the first message has no hop behind it
    assert ring.there.hops == ["1", "3", "5"]
    refused = ring.device.get("/channels/suzent/session").json()["messages"][-1]
    assert refused["text"] == "silent: hop_limit"


CLAIMS = {
    "0": lambda hops: "0", "nothing, as 0.9.1 does": lambda hops: None, "-5": lambda hops: "-5", "10^9": lambda hops: "1000000000",
    "999999999": lambda hops: "999999999", "what it got": lambda hops: hops, "one less": lambda hops: str(int(hops) - 1), "words": lambda hops: "many",
}  # fmt: skip


@pytest.mark.parametrize("claims", CLAIMS.values(), ids=CLAIMS.keys())
def test_lop_03_whatever_the_device_says_of_the_chain_it_is_no_longer(ring, claims):
    assert 2 <= ring.goes_round(claims=claims) <= MOST + 1


def test_lop_03_what_comes_later_starts_afresh(ring):
    ring.goes_round(claims=lambda hops: None)
    Message.objects.filter(settled_at__isnull=False).update(settled_at=database_now() - timedelta(minutes=11))
    ring.device.send("later", "Good morning.")
    assert Message.objects.latest("pk").hops == 0


def test_mail_of_a_device_that_nobody_here_wrote_to_lately_has_no_hop_behind_it(ring):
    for number in range(3):
        ring.device.send(f"m-{number}", "Hello.")
    assert set(Message.objects.values_list("hops", flat=True)) == {0}
