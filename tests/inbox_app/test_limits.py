"""A sender that runs away is held back; the others are not."""

import pytest

from inbox_app.errors import RateLimited
from inbox_app.limits import SENDERS_REMEMBERED, Buckets


class Clock:
    seconds = 0.0

    def __call__(self):
        return self.seconds


@pytest.fixture
def clock(settings):
    settings.SUZENT_SENDER_RATE = 6
    return Clock()


@pytest.fixture
def tired(clock):
    """Buckets whose sender ``loop`` has used up its burst of 20."""
    buckets = Buckets(clock)
    for _ in range(20):
        buckets.take("tea", "loop")
    return buckets


def test_a_rested_sender_may_send_a_burst_and_then_hears_when_to_come_back(tired):
    with pytest.raises(RateLimited) as refused:
        tired.take("tea", "loop")
    assert refused.value.extra["retry_after"] == pytest.approx(1 / 6)


def test_another_sender_and_another_projects_sender_are_not_held_back(tired):
    tired.take("tea", "calm")
    tired.take("coffee", "loop")


def test_places_come_back_at_the_rate_and_no_faster(tired, clock):
    clock.seconds = 0.5
    for _ in range(3):
        tired.take("tea", "loop")
    with pytest.raises(RateLimited):
        tired.take("tea", "loop")


def test_a_long_rest_gives_no_more_than_one_burst(tired, clock):
    clock.seconds = 3600
    for _ in range(20):
        tired.take("tea", "loop")
    with pytest.raises(RateLimited):
        tired.take("tea", "loop")


def test_the_memory_of_senders_is_bounded_and_forgets_the_longest_silent(tired):
    for number in range(SENDERS_REMEMBERED):
        tired.take("tea", f"sender-{number}")
    tired.take("tea", "loop")
