"""When to try again, without a database."""

import random

import pytest

from inbox_app.backoff import LOCAL, Policy, delay


def seconds(attempt, policy=LOCAL, *, seed=0):
    return delay(attempt, policy, rng=random.Random(seed)).total_seconds()


@pytest.mark.parametrize(("attempt", "about"), [(1, 2), (2, 4), (3, 8), (4, 16), (5, 32), (6, 60), (7, 60)])
def test_waits_double_from_two_seconds_to_a_minute(attempt, about):
    assert all(about * 0.8 <= seconds(attempt, seed=seed) <= about * 1.2 for seed in range(50))


def test_those_that_fail_together_do_not_return_together():
    """LSE-13: after three failures of 200 messages no second sees more than a few, and the spread grows."""
    first, third, sixth = (sorted(seconds(attempt, seed=seed) for seed in range(200)) for attempt in (1, 3, 6))
    assert first[-1] - first[0] < third[-1] - third[0] < sixth[-1] - sixth[0]
    assert max(sum(start <= wait < start + 1 for wait in sixth) for start in range(45, 75)) <= 20


@pytest.mark.parametrize("attempt", [31, 1_024, 10**9])
def test_a_huge_number_of_attempts_is_still_a_minute(attempt):
    assert 48 <= seconds(attempt) <= 72


@pytest.mark.parametrize("attempt", [0, -3])
def test_an_attempt_before_the_first_waits_like_the_first(attempt):
    assert seconds(attempt) == seconds(1)


def test_a_policy_sets_base_cap_and_jitter():
    assert [seconds(n, Policy(base=5, cap=3_600, jitter=0)) for n in (1, 2, 20)] == [5, 10, 3_600]
