"""The engine towards other machines: one try at a time and in order, a lane that backs off, honest failures."""

import threading
from datetime import timedelta

import pytest

from inbox_app import retention, transitions, transports
from inbox_app.deliveries import Acknowledgement, Draft, Ended, Judged, Parcel, RemoteTarget, Setback
from inbox_app.errors import MaybeDelivered, TargetGone
from inbox_app.judgement import Judgement, Verdict
from inbox_app.models import Attempt, Message
from inbox_app.shift import Shift
from sessions_app import lanes
from sessions_app.clock import database_now
from sessions_app.holder import LaneHolder
from sessions_app.models import Holder, Lane, Turn
from tests.factories import MessageFactory, SessionFactory, delivered
from tests.inbox_app.odd_transport import PLACES, Post

pytestmark = pytest.mark.django_db

LANE = "peer:b"


@pytest.fixture(autouse=True)
def with_post(settings, monkeypatch):
    settings.TRANSPORTS = PLACES
    for name, value in {"ends": [], "closed": False, "gone": False}.items():
        monkeypatch.setattr(Post, name, value)


@pytest.fixture
def sender():
    lanes.ensure(LANE)
    return SessionFactory(agent_id="planner")


def send(sender, content="hello", *, to="peer:b", **about):
    return transitions.accept(draft_of(sender, content, to=to, **about), now=database_now()).message


def draft_of(sender, content, *, to="peer:b", **about):
    return Draft(
        project_id=sender.project_id, target=RemoteTarget(to, sender.project_id), content=content,
        kind=Message.Kind.AGENT_MESSAGE, sender_id=sender.pk, **about,
    )  # fmt: skip


def claim(owner="one", *, now=None, limit=10, **options):
    return transitions.claim(owner, now=now or database_now(), limit=limit, **options)


def taken():
    [parcel] = [item for item in claim() if isinstance(item, Parcel)]
    return parcel


def arrived(parcel, **answer):
    return Acknowledgement(parcel.hold, parcel.message, answer=answer)


def failing(error="no answer", *, wait=10, charged=True, maybe=False, **about):
    return Setback(error, database_now() + timedelta(seconds=wait), charged=charged, maybe_delivered=maybe, **about)


def put_back(parcel, *args, **kwargs):
    assert transitions.release(parcel, failing(*args, **kwargs), now=database_now())


def lane():
    return Lane.objects.get(key=LANE)


# --- accept ----------------------------------------------------------------------------------------------------
def test_a_message_to_another_machine_waits_in_its_lane_without_a_session(sender):
    message = send(sender)
    assert (message.transport, message.session, message.target, message.lane, message.max_attempts) == ("suzent_peer", None, LANE, LANE, 3)
    assert lanes.any_due(now=database_now())


def test_who_takes_no_mail_gets_none(sender, monkeypatch):
    monkeypatch.setattr(Post, "closed", True)
    with pytest.raises(TargetGone):
        send(sender)
    monkeypatch.setattr(Post, "closed", False)
    with pytest.raises(TargetGone):
        send(sender, to="peer:without-a-lane")


# --- a try -----------------------------------------------------------------------------------------------------
def test_a_try_has_an_attempt_and_no_turn(sender):
    message = send(sender)
    parcel = taken()
    assert (parcel.message, parcel.attempt.number, Message.objects.get().status) == (message, 1, "processing")
    assert not Turn.objects.exists()


def test_one_try_at_a_time_and_in_order(sender):
    first, second = send(sender, "1"), send(sender, "2")
    parcel = taken()
    assert (parcel.message, claim("two")) == (first, [])
    [then] = transitions.acknowledge([Acknowledgement(parcel.hold, parcel.message, go_on=True)], now=database_now())
    assert then.message == second


def test_what_the_other_machine_answered_is_kept(sender):
    send(sender)
    transitions.acknowledge([arrived(taken(), status="pending", created=True)], now=database_now())
    message = Message.objects.get()
    assert (message.status, message.peer_answer) == ("delivered", {"status": "pending", "created": True})


def test_a_refusal_fails_it_at_once_and_tells_the_sender_and_the_next_goes(sender):
    send(sender, "1")
    second = send(sender, "2")
    parcel = taken()
    refusal = Judgement(Verdict.FAIL, Message.Reason.REJECTED, "the peer answered 413: too long")
    assert transitions.fail(Judged(parcel.hold, parcel.message, refusal), now=database_now(), answered=True)
    failed = Message.objects.get(pk=parcel.message.pk)
    assert (failed.status, failed.reason, failed.last_error) == ("failed", "rejected", "the peer answered 413: too long")
    assert "was not delivered" in Message.objects.get(kind="delivery_failure").content
    assert taken().message == second


# --- backing off -----------------------------------------------------------------------------------------------
def test_the_lane_backs_off_and_whatever_is_its_head_waits(sender):
    head = send(sender, "1")
    send(sender, "2")
    put_back(taken(), wait=60)
    transitions.withdraw(head, who="planner", by_sender=True, now=database_now())
    send(sender, "3")
    assert (lane().failures, claim()) == (1, [])
    transitions.sweep(now=database_now())
    assert claim() == []
    later = claim(now=database_now() + timedelta(seconds=61))
    assert [item.message.content for item in later] == ["2"]


def test_a_delivery_ends_the_row_of_failures(sender):
    send(sender)
    for _ in range(2):
        put_back(taken(), wait=0)
    assert lane().failures == 2
    transitions.acknowledge([arrived(taken())], now=database_now())
    assert lane().failures == 0


def test_a_lane_that_waits_far_beyond_the_cap_was_dated_by_a_clock_that_ran_ahead(sender, settings):
    send(sender)
    put_back(taken(), wait=settings.SUZENT_PEER_BACKOFF_CAP * 10)
    transitions.sweep(now=database_now())
    assert taken()


def test_a_wait_that_the_other_machine_asked_for_is_not_charged_and_is_kept(sender):
    send(sender)
    put_back(taken(), wait=60, charged=False, deferred=True, outcome=Attempt.Outcome.RELEASED)
    transitions.sweep(now=database_now())
    message = Message.objects.get()
    assert (claim(), message.attempts, message.deferrals, message.status) == ([], 0, 1, "pending")


def test_all_tries_used_up_is_told_with_the_last_error(sender):
    send(sender)
    for _ in range(3):
        put_back(taken(), wait=0)
    message = Message.objects.get(transport="suzent_peer")
    assert (message.status, message.reason, message.last_error) == ("failed", "exhausted", "no answer")
    assert Message.objects.filter(kind="delivery_failure", session=sender).exists()


def test_the_horizon_ends_it_in_any_lane_and_is_told_from_a_validity(sender, settings, monkeypatch):
    horizon = timedelta(seconds=settings.SUZENT_PEER_HORIZON)
    monkeypatch.setattr(Post, "lifetime", lambda self, asked: min(asked or horizon, horizon))
    send(sender, "long")
    send(sender, "short", valid_for=timedelta(seconds=5))
    lanes.pause(LANE, now=database_now())
    transitions.sweep(now=database_now() + horizon)
    assert dict(Message.objects.filter(transport="suzent_peer").values_list("content", "reason")) == {"long": "exhausted", "short": "expired"}


# --- what is not known -----------------------------------------------------------------------------------------
def test_after_a_try_without_a_definite_answer_it_is_not_withdrawn_and_a_failure_says_that_it_may_have_arrived(sender):
    message = send(sender)
    put_back(taken(), wait=0, maybe=True)
    with pytest.raises(MaybeDelivered):
        transitions.withdraw(message, who="planner", by_sender=True, now=database_now())
    for _ in range(2):
        put_back(taken(), wait=0)
    assert "may have arrived" in Message.objects.get(kind="delivery_failure").content


def test_a_try_whose_process_died_may_have_arrived_and_makes_nobody_a_suspect(sender):
    send(sender)
    lost = taken()
    assert lanes.end_leases("one", now=database_now()) == 1
    again = taken()
    message = Message.objects.get()
    assert (message.maybe_delivered, message.losses, again.attempt.number) == (True, 0, 2)
    assert Attempt.objects.get(pk=lost.attempt.pk).outcome == "lost"


def test_adm_03_a_late_answer_does_not_decide_the_next_try(sender):
    message = send(sender)
    first = taken()
    lanes.end_leases("one", now=database_now())
    second = taken()
    transitions.acknowledge([arrived(first)], now=database_now())
    assert not transitions.release(first, failing(), now=database_now())
    assert Message.objects.get(pk=message.pk).status == "processing"
    transitions.acknowledge([arrived(second)], now=database_now())
    assert Message.objects.get(pk=message.pk).status == "delivered"


def test_adm_03_a_redelivery_goes_out_again_under_its_own_id(sender):
    message = send(sender)
    for _ in range(3):
        put_back(taken(), wait=0)
    message = Message.objects.get(pk=message.pk)
    transitions.redeliver(message, who="olga", now=database_now())
    again = taken()
    assert (again.message.message_id, again.message.max_attempts) == (message.message_id, 6)
    transitions.acknowledge([arrived(again, status="delivered", created=False)], now=database_now())
    assert Message.objects.get(pk=message.pk).status == "delivered"


def test_the_mail_of_who_is_gone_fails_as_such(sender, monkeypatch):
    send(sender)
    monkeypatch.setattr(Post, "gone", True)
    [judged] = claim()
    assert (judged.judgement.verdict, judged.judgement.reason) == (Verdict.FAIL, "target_gone")


def test_no_session_of_any_name_has_had_the_turn_of_a_message_that_leaves(sender):
    """Its session is none: a session whose id is the word None must not pass for it."""
    namesake = SessionFactory(agent_id="None")
    delivered(MessageFactory(sender=SessionFactory(project=namesake.project), target=namesake, message_id="m-1"))
    send(sender, message_id="m-1")
    assert taken().message.message_id == "m-1"
    assert Message.objects.get(project=sender.project).status == "processing"


def test_what_was_delivered_goes_with_the_retention_and_its_id_stays_used(sender):
    message = send(sender, message_id="m-1")
    transitions.acknowledge([arrived(taken(), status="pending", created=True)], now=database_now())
    gone = retention.purge(now=database_now() + timedelta(days=31), rest=lambda _: False).gone
    assert (gone["messages"], Message.objects.exists()) == (1, False)
    assert transitions.accept(draft_of(sender, message.content, message_id="m-1"), now=database_now()).created is False


# --- isolation -------------------------------------------------------------------------------------------------
def test_other_machines_get_no_more_than_their_share_and_local_mail_comes_in_their_place(sender):
    for number in range(6):
        lanes.ensure(f"peer:{number}")
        send(sender, to=f"peer:{number}")
    local = [MessageFactory(sender=sender).pk for _ in range(3)]
    found = claim(limit=6, remote=2)
    assert sorted(item.message.pk for item in found if not isinstance(item, Parcel)) == local
    assert sum(isinstance(item, Parcel) for item in found) == 2
    assert claim("two", limit=6, remote=0) == []
    assert not lanes.any_due(now=database_now(), remote=False)
    assert lanes.any_due(now=database_now())


@pytest.mark.django_db(transaction=True)
def test_slow_machines_never_take_more_than_half_of_a_shift(sender, settings):
    settings.SUZENT_TURN_CONCURRENCY = 4
    done, entered = threading.Event(), threading.Semaphore(0)

    def slow(parcel):
        entered.release()
        done.wait(20)
        return Ended(acknowledgement=arrived(parcel))

    Post.ends = [slow] * 5
    for number in range(5):
        lanes.ensure(f"peer:{number}")
        send(sender, to=f"peer:{number}")
    local = [MessageFactory(sender=sender) for _ in range(4)]
    with LaneHolder(Holder.Kind.SHIFT) as holder:
        shift = Shift(holder, nursery=None)
        until(shift, lambda: not Message.objects.filter(pk__in=[message.pk for message in local]).unsettled().exists())
        assert Message.objects.filter(transport="suzent_peer").processing().count() == 2
        done.set()
        until(shift, lambda: not Message.objects.unsettled().exists())
        shift.leave()
    assert Message.objects.delivered().count() == 9


@pytest.mark.django_db(transaction=True)
def test_a_shift_settles_whatever_a_try_came_to(sender):
    refusal = Judgement(Verdict.FAIL, Message.Reason.HOP_LIMIT, "the peer answered 422: hop_limit")
    Post.ends = [
        lambda parcel: Ended(setback=failing(wait=0)), lambda parcel: Ended(acknowledgement=arrived(parcel, status="pending", created=True)),
        lambda parcel: Ended(refusal=refusal),
    ]  # fmt: skip
    send(sender, "1")
    send(sender, "2")
    with LaneHolder(Holder.Kind.SHIFT) as holder:
        shift = Shift(holder, nursery=None)
        until(shift, lambda: not Message.objects.filter(transport="suzent_peer").unsettled().exists())
        shift.leave()
    assert list(Message.objects.filter(transport="suzent_peer").order_by("pk").values_list("status", "reason", "attempts")) == [
        ("delivered", None, 1), ("failed", "hop_limit", 0),
    ]  # fmt: skip


def until(shift, is_so):
    for _ in range(2_000):
        if is_so():
            return
        shift.step()
        shift.rest(0.01)
    raise AssertionError("the shift did not get there")


# --- what the tools and pages say ------------------------------------------------------------------------------
def test_other_machines_are_listed_after_the_sessions_page_by_page(town):
    seen, cursor = [], ""
    for _ in range(6):
        page = town.planner.api.tool("agent_list", status="recent", limit=2, **({"cursor": cursor} if cursor else {})).json()
        seen.append([agent["agent_id"] for agent in page["agents"]])
        cursor = page["next_cursor"]
        if not page["has_more"]:
            break
    assert [sorted(names) for names in seen] == [["planner", "writer"], ["peer:b", "peer:c"], ["peer:d"]]
    assert town.planner.api.tool("agent_list", cursor="peer:nonsense").status_code == 400


def test_a_message_to_another_machine_is_sent_and_shown(town):
    lanes.ensure(LANE)
    sent = town.planner.api.send("peer:b", "hello", message_id="m-1")
    assert (sent.status_code, sent.json()["transport"], sent.json()["agent_id"]) == (202, "suzent_peer", LANE)
    assert town.planner.api.send("peer:x", "hello").status_code == 404
    put_back(taken(), wait=60, maybe=True)
    shown = town.planner.api.get("/api/messages/m-1").json()
    assert (shown["status"], shown["waiting_for"], shown["maybe_delivered"], shown["peer_answer"]) == ("pending", "the post", True, None)
    assert shown["next_attempt_at"] > shown["accepted_at"]
    refused = town.planner.api.post("/api/messages/m-1/withdraw")
    assert (refused.status_code, refused.json()["code"]) == (409, "maybe_delivered")
    assert [one["message_id"] for one in town.planner.api.get("/api/messages", agent_id=LANE, direction="sent").json()["messages"]] == ["m-1"]
    assert [one["message_id"] for one in town.owner.get("/api/messages", agent_id=LANE, direction="received").json()["messages"]] == ["m-1"]


def test_without_a_transport_nothing_leads_to_other_machines(town, settings):
    settings.TRANSPORTS = {"local": PLACES["local"]}
    assert transports.remote() is None
    for tool in ("agent_read", "agent_stop"):
        assert town.planner.api.tool(tool, agent_id="peer:b").status_code == 404
    assert town.planner.api.send("peer:b", "hello").status_code == 404
    assert len(town.planner.api.tool("agent_list", status="recent").json()["agents"]) == 2
