"""The one lease of the system, and the process that keeps it."""

import threading
from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, transaction

from sessions_app import lanes
from sessions_app.clock import database_now
from sessions_app.holder import LaneHolder
from sessions_app.models import Holder, Lane
from suzent_site.transactions import durable

KEY = "agent:a"


@pytest.fixture
def now():
    return database_now()


def lane(key=KEY):
    return Lane.objects.get(pk=key)


def due_lanes(count, *, now):
    keys = [f"agent:{number}" for number in range(count)]
    with durable():
        for number, key in enumerate(keys):
            lanes.ensure(key)
            lanes.mark_due(key, now=now - timedelta(seconds=count - number))
    return keys


def due(now, key=KEY):
    with durable():
        lanes.ensure(key)
        lanes.mark_due(key, now=now)


def claim(owner="one", *, now, limit=10):
    with durable():
        return lanes.claim(owner, now=now, limit=limit)


def release(hold, *, due_at=None):
    with durable():
        lanes.release([hold], due_at=due_at)


later = timedelta(seconds=1)
pytestmark = pytest.mark.django_db(transaction=True)


# --- making and marking ----------------------------------------------------------------------------------------


def test_a_lane_is_made_once():
    with durable():
        lanes.ensure(KEY)
        lanes.ensure(KEY)
    assert Lane.objects.count() == 1


def test_a_new_lane_is_due_for_nobody(now):
    with durable():
        lanes.ensure(KEY)
    assert not lanes.any_due(now=now + later)
    assert claim(now=now + later) == []


def test_marking_keeps_an_earlier_due_time(now):
    due(now - later)
    with durable():
        assert lanes.mark_due(KEY, now=now)
    assert lane().due_at == now - later


def test_marking_a_lane_that_is_not_there_says_so(now):
    with durable():
        assert not lanes.mark_due(KEY, now=now)


# --- claiming --------------------------------------------------------------------------------------------------


def test_claim_takes_the_longest_due_first_and_no_more_than_asked(now):
    keys = due_lanes(4, now=now)
    assert [hold.key for hold in claim(now=now, limit=2)] == keys[:2]
    assert [hold.key for hold in claim(now=now, limit=9)] == keys[2:]


def test_each_claim_raises_the_epoch_and_holds_until_the_lease_ends(now):
    due(now)
    first = claim(now=now)[0]
    assert (lane().lease_owner, lane().lease_until, lane().due_at) == ("one", now + lanes.lease(), now + lanes.lease())
    release(first, due_at=now)
    assert claim(now=now)[0].epoch == first.epoch + 1


def test_a_held_lane_is_not_taken_before_its_lease_ends(now):
    due(now)
    claim(now=now)
    assert claim("two", now=now + lanes.lease() - later) == []


def test_a_lane_whose_lease_has_ended_comes_due_by_itself(now):
    due(now)
    first = claim(now=now)[0]
    [second] = claim("two", now=now + lanes.lease())
    assert (second.owner, second.epoch) == ("two", first.epoch + 1)


@pytest.mark.parametrize("change", [{"paused": True}, {"due": timedelta(seconds=5)}])
def test_a_paused_or_later_lane_is_not_taken(now, change):
    due(now + change.get("due", timedelta(0)))
    if change.get("paused"):
        lanes.pause(KEY, now=now)
    assert not lanes.any_due(now=now)
    assert claim(now=now) == []


def test_a_lane_is_never_held_without_being_due_at_the_end_of_its_lease(now):
    due(now)
    claim(now=now)
    with pytest.raises(IntegrityError), transaction.atomic():
        Lane.objects.filter(pk=KEY).update(due_at=None)


# --- proving ---------------------------------------------------------------------------------------------------


def test_the_holder_proves_its_lane(now):
    due(now)
    [hold] = claim(now=now)
    with durable():
        lanes.prove(hold, lanes.lock([KEY]))
    assert lanes.holds_still(hold)


@pytest.mark.parametrize(
    "wrong", [lanes.Hold(KEY, "two", 1), lanes.Hold(KEY, "one", 0), lanes.Hold(KEY, "one", 2), lanes.Hold("agent:b", "one", 1)]
)
def test_another_owner_epoch_or_lane_proves_nothing(now, wrong):
    due(now)
    claim(now=now)
    with durable(), pytest.raises(lanes.LeaseLost):
        lanes.prove(wrong, lanes.lock([KEY, "agent:b"]))
    assert not lanes.holds_still(wrong)


def test_who_lost_a_lane_even_to_itself_proves_nothing(now):
    due(now)
    [old] = claim(now=now)
    release(old, due_at=now)
    claim(now=now)
    assert not lanes.holds_still(old)


# --- letting go ------------------------------------------------------------------------------------------------


def test_a_released_lane_is_due_when_it_was_said(now):
    due(now)
    release(claim(now=now)[0], due_at=now + later)
    assert (lane().lease_owner, lane().due_at) == (None, now + later)


def test_a_lane_of_another_is_not_released(now):
    due(now)
    claim(now=now)
    release(lanes.Hold(KEY, "two", 1))
    assert lane().lease_owner == "one"


def test_a_seized_lane_is_free_fenced_unpaused_and_due(now):
    due(now)
    [hold] = claim(now=now)
    lanes.pause(KEY, now=now)
    with durable():
        lanes.seize(KEY, now=now)
    assert not lanes.holds_still(hold)
    assert claim("two", now=now)[0].epoch == hold.epoch + 2


def test_looking_now_leaves_a_held_lane_to_its_holder(now):
    due(now)
    claim(now=now)
    with durable():
        lanes.look_now([KEY], now=now)
    assert lane().due_at == now + lanes.lease()


def test_pause_and_resume_say_whether_they_changed_anything(now):
    due(now)
    assert [lanes.pause(KEY, now=now), lanes.pause(KEY, now=now)] == [True, False]
    assert [lanes.resume(KEY, now=now), lanes.resume(KEY, now=now)] == [True, False]
    assert not lanes.pause("agent:b", now=now)


def test_pausing_leaves_the_holder_its_lane(now):
    due(now)
    [hold] = claim(now=now)
    lanes.pause(KEY, now=now)
    assert lanes.holds_still(hold)


def test_renewal_moves_the_lease_and_the_due_time_of_all_lanes_of_the_owner(now):
    due_lanes(2, now=now)
    claim(now=now)
    assert lanes.renew("one", now=now + later) == {"agent:0", "agent:1"}
    assert {(row.lease_until, row.due_at) for row in Lane.objects.all()} == {(now + later + lanes.lease(),) * 2}
    assert lanes.renew("two", now=now) == set()


def test_ended_leases_are_due_at_once_and_only_the_owners(now):
    due_lanes(3, now=now)
    claim("one", now=now, limit=2)
    claim("two", now=now)
    assert lanes.end_leases("one", now=now, keys=["agent:0"]) == 1
    assert lanes.end_leases("one", now=now) == 1
    assert lanes.end_leases("one", now=now) == 0
    assert {hold.key for hold in claim("three", now=now)} == {"agent:0", "agent:1"}


# --- the clock -------------------------------------------------------------------------------------------------


def test_a_clock_set_forward_steals_no_lease_of_a_living_process(now):
    with LaneHolder(Holder.Kind.SHIFT) as holder:
        due(now)
        claim(holder.owner, now=now)
        assert claim("thief", now=now + timedelta(days=1)) == []


def test_a_clock_set_forward_does_not_keep_the_lease_of_one_that_is_gone(now):
    with LaneHolder(Holder.Kind.SHIFT) as holder:
        pass
    due(now)
    claim(holder.owner, now=now)
    assert len(claim("two", now=now + timedelta(days=1))) == 1


# --- the holder ------------------------------------------------------------------------------------------------


def test_a_holder_has_a_row_while_it_lives():
    with LaneHolder(Holder.Kind.WEB) as holder:
        assert Holder.objects.get().owner == holder.owner
    assert not Holder.objects.exists()


def test_a_holder_that_ends_frees_what_it_still_holds(now):
    with LaneHolder(Holder.Kind.SHIFT) as holder:
        due(now)
        claim(holder.owner, now=now)
    assert lane().lease_owner is None
    assert lanes.any_due(now=database_now())


def test_a_holder_makes_up_for_one_before_it_in_its_process_that_could_not_say_goodbye(now):
    forerunner = LaneHolder(Holder.Kind.SHIFT).__enter__()
    due(now)
    claim(forerunner.owner, now=now)
    with LaneHolder(Holder.Kind.SHIFT) as holder:
        assert Holder.objects.get().owner == holder.owner
        assert lane().lease_owner is None
    forerunner.__exit__()


def test_a_beat_says_how_much_room_there_is():
    with LaneHolder(Holder.Kind.SHIFT) as holder:
        holder.beat(free=7)
        assert Holder.objects.get().free == 7
        holder.beat(free=0)
        assert Holder.objects.get().free == 0


def test_a_turn_whose_lane_was_lost_is_told_to_stop_at_the_next_renewal(now):
    with LaneHolder(Holder.Kind.SHIFT) as holder:
        due(now)
        claim(holder.owner, now=now)
        stop = holder.watch(KEY, 1)
        holder.renew()
        assert not stop.is_set()
        with durable():
            lanes.seize(KEY, now=now)
        holder.renew()
        assert stop.is_set()


def test_a_lane_claimed_while_the_leases_are_being_renewed_is_not_taken_for_lost(now):
    """The claim falls between the two halves of a renewal: after the leases were read, before what is watched."""
    stops = []

    def claim_meanwhile(execute, sql, params, many, context):
        if sql.startswith('UPDATE "sessions_app_holder"') and not stops:
            stops.append(threading.Event())
            taken = threading.Thread(target=lambda: stops.append(holder.watch(KEY, 1)))
            taken.start()
            taken.join()
        return execute(sql, params, many, context)

    with LaneHolder(Holder.Kind.SHIFT) as holder:
        due(now)
        with connection.execute_wrapper(claim_meanwhile):
            holder.renew()
        assert not stops[1].is_set()


def test_a_lane_that_nobody_works_on_is_freed_after_some_renewals(now):
    with LaneHolder(Holder.Kind.SHIFT) as holder:
        due(now)
        claim(holder.owner, now=now)
        holder.watch(KEY, 1)
        holder.forget(KEY)
        for _ in range(2):
            holder.renew()
            assert lane().lease_owner == holder.owner
        holder.renew()
        assert lane().lease_owner is None


def test_a_busy_lane_that_is_between_two_messages_at_every_renewal_is_not_freed(now):
    with LaneHolder(Holder.Kind.SHIFT) as holder:
        due(now)
        claim(holder.owner, now=now)
        for turn_id in range(4):
            holder.watch(KEY, turn_id)
            holder.forget(KEY)
            holder.renew()
        assert lane().lease_owner == holder.owner
