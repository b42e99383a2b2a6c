"""The order of judgement at a claim, without a database."""

from datetime import UTC, datetime, timedelta

import pytest

from inbox_app.judgement import SOLITARY_LOSSES, Evidence, Judgement, Verdict, judge
from inbox_app.models import Message

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PAST, FUTURE = NOW - timedelta(seconds=1), NOW + timedelta(seconds=1)
NOTHING = Evidence(marked=False, stop_requested=False, archived=False)
EVERYTHING_WRONG = {"valid_until": PAST, "losses": SOLITARY_LOSSES + 1, "attempts": 5}


def verdict(evidence=NOTHING, **fields):
    return judge(Message(**{"available_at": NOW, "max_attempts": 5} | fields), evidence, now=NOW)


def test_a_sound_message_runs():
    assert verdict() == Judgement(Verdict.RUN)


def test_a_marker_is_stronger_than_all_else():
    assert verdict(Evidence(marked=True, stop_requested=False, archived=True), **EVERYTHING_WRONG).verdict == Verdict.DELIVERED


def test_a_marker_of_a_stopped_turn_is_settled_as_stopped():
    assert verdict(Evidence(marked=True, stop_requested=True, archived=False)).verdict == Verdict.STOPPED


def test_a_stop_request_is_stronger_than_an_archived_target():
    assert verdict(Evidence(marked=False, stop_requested=True, archived=True), **EVERYTHING_WRONG).verdict == Verdict.STOPPED


def test_an_archived_target_is_stronger_than_expiry():
    assert verdict(Evidence(marked=False, stop_requested=False, archived=True), **EVERYTHING_WRONG).reason == "target_gone"


@pytest.mark.parametrize("moment", [PAST, NOW])
def test_expiry_is_stronger_than_being_used_up(moment):
    assert verdict(**EVERYTHING_WRONG | {"valid_until": moment}).reason == "expired"


def test_validity_that_lasts_does_not_matter():
    assert verdict(valid_until=FUTURE).verdict == Verdict.RUN


def test_too_many_losses_are_told_as_such_and_not_as_exhaustion():
    assert verdict(losses=SOLITARY_LOSSES + 1, attempts=5).reason == "worker_died"


@pytest.mark.parametrize("losses", range(SOLITARY_LOSSES + 1))
def test_the_first_loss_is_free_and_three_more_are_allowed(losses):
    assert verdict(losses=losses).verdict == Verdict.RUN


def test_used_up_attempts_fail_with_the_last_error():
    assert verdict(attempts=5, last_error="boom") == Judgement(Verdict.FAIL, Message.Reason.EXHAUSTED, "boom")


def test_before_its_time_it_waits():
    assert verdict(available_at=FUTURE).verdict == Verdict.WAIT


def test_what_is_to_fail_does_not_wait_for_its_time():
    assert verdict(available_at=FUTURE, valid_until=PAST).verdict == Verdict.FAIL
