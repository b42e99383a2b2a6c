"""Mail under fire, in short; ``python -m tests.acceptance.chaos --full`` is the long form."""

from __future__ import annotations

import random

import pytest

from tests.acceptance.chaos.killer import Arms
from tests.acceptance.chaos.play import Orders, environment, play

pytestmark = pytest.mark.processes


def orders():
    return Orders(seed=random.SystemRandom().randrange(10**6), messages=150, seconds=15, lease=3)


def assert_nothing_went_wrong(report):
    assert report.verdict.faults() == {}, report.story()
    assert report.figures["left_behind"] == 0, report.story()
    assert report.figures["shots"] > 0


def test_each_accepted_message_is_in_its_transcript_once_and_in_order_whatever_is_killed(make_site, tmp_path):
    """LSE-03."""
    asked = orders()
    site = make_site(**environment(asked, tmp_path))
    arms = Arms(
        database_gate=site.put_gate_before("DATABASE_URL") if site.database_url else None,
        redis_gate=site.put_gate_before("REDIS_URL") if site.redis_url else None,
    )
    assert_nothing_went_wrong(play(site, asked, arms))
