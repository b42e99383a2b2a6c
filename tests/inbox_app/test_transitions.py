"""The one door through which a message changes: every verb from every status, and what each costs."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, transaction
from django.test import override_settings

from inbox_app import transitions
from inbox_app.deliveries import Acknowledgement, Draft, Judged, Setback, Swept, Work
from inbox_app.errors import HopLimit, MailboxFull, MessageIdConflict, NotFailed, NotPending, TargetGone
from inbox_app.judgement import Judgement, Verdict
from inbox_app.models import CONTENT_LIMIT, Attempt, Message
from sessions_app import actions, lanes, turns
from sessions_app.clock import database_now
from sessions_app.models import Lane, Session, Turn
from suzent_site.errors import Invalid
from suzent_site.transactions import durable
from tests.factories import MessageFactory, ProjectFactory, SessionFactory, claimed, committed, delivered, failed

pytestmark = pytest.mark.django_db

second, minute, hour, day = timedelta(seconds=1), timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
OTHER = "shift:other"
Outcome = Attempt.Outcome


def row(message):
    return Message.objects.get(pk=message.pk)


def lane_of(message):
    return Lane.objects.get(pk=message.session.lane_key)


def outcomes(message):
    return list(Attempt.objects.filter(message=message).order_by("number").values_list("outcome", flat=True))


def notices():
    return list(Message.objects.filter(kind="delivery_failure").order_by("pk"))


def claim(*, now=None, owner=OTHER, limit=1000):
    return transitions.claim(owner, now=now or database_now(), limit=limit)


def acknowledge(work, **about):
    return transitions.acknowledge([Acknowledgement(work.hold, work.message, **about)], now=database_now())


def release(work, *, now=None, error="boom", wait=timedelta(0), **costs):
    now = now or database_now()
    return transitions.release(work, Setback(error, now + wait, **costs), now=now)


def fail(work, reason=Message.Reason.REJECTED, error="no"):
    judged = Judged(work.hold, work.message, Judgement(Verdict.FAIL, reason, error))
    return transitions.fail(judged, now=database_now())


def settle(found):
    """What a shift does with what a claim found not to run."""
    for item in found:
        if isinstance(item, Judged) and item.judgement.verdict == Verdict.FAIL:
            transitions.fail(item, now=database_now())
        elif isinstance(item, Judged):
            stopped = item.judgement.verdict == Verdict.STOPPED
            acknowledge(item, outcome=Outcome.STOPPED if stopped else Outcome.DELIVERED)
    return found


def withdraw(message, *, by_sender=True):
    return transitions.withdraw(message, who="olga", by_sender=by_sender, now=database_now())


def redeliver(message, *, now=None):
    return transitions.redeliver(message, who="olga", now=now or database_now())


def mail_for(target, count):
    return [MessageFactory(sender=None, sender_label="test", target=target) for _ in range(count)]


def taken(message):
    claimed(message)
    return row(message)


EVERY_STATUS = {"pending": lambda message: message, "processing": taken, "delivered": delivered, "failed": failed}


def message_that_is(status):
    return EVERY_STATUS[status](MessageFactory())


# --- accept ----------------------------------------------------------------------------------------------------


def send(target, **about):
    draft = {"project_id": target.project_id, "content": "hello", "kind": Message.Kind.USER_MESSAGE} | about
    return transitions.accept(Draft(target=target, **draft), now=database_now())


def test_an_accepted_message_is_pending_and_its_lane_due():
    accepted = send(SessionFactory())
    assert accepted.created
    assert (row(accepted.message).status, row(accepted.message).root_id) == ("pending", accepted.message.message_id)
    assert lanes.any_due(now=database_now())


@pytest.mark.parametrize("status", EVERY_STATUS)
def test_the_same_message_again_is_the_first_whatever_became_of_it(status):
    """SND-01, SND-02."""
    first = message_that_is(status)
    before = row(first)
    again = send(first.session, message_id=first.message_id, sender_id=first.sender_id, content=first.content, kind=first.kind)
    assert (again.created, again.message.pk) == (False, first.pk)
    assert (again.message.status, again.message.attempts) == (before.status, before.attempts)
    assert Message.objects.exclude(kind="delivery_failure").count() == 1


@pytest.mark.parametrize("status", EVERY_STATUS)
@pytest.mark.parametrize("change", [{"content": "b"}, {"kind": Message.Kind.USER_MESSAGE}, {"sender_id": None}, {"payload": {"x": 1}}])
def test_an_id_used_for_something_else_is_a_conflict_that_quotes_nothing(status, change):
    """SND-03."""
    first = message_that_is(status)
    same = {"message_id": first.message_id, "sender_id": first.sender_id, "content": first.content, "kind": first.kind}
    with pytest.raises(MessageIdConflict) as refused:
        send(first.session, **same | change)
    assert first.content not in f"{refused.value.detail}{refused.value.extra}"
    assert row(first).content == first.content


def test_an_id_used_for_another_target_is_a_conflict():
    first = MessageFactory(sender=None, sender_label="x")
    elsewhere = SessionFactory(project=first.project)
    with pytest.raises(MessageIdConflict):
        send(elsewhere, message_id=first.message_id, content=first.content, kind=first.kind)


def test_an_id_is_free_in_another_project():
    first = MessageFactory()
    assert send(SessionFactory(), message_id=first.message_id).created


@pytest.mark.parametrize("content", ["", " ", "\n\t", "\u200b", "\ufeff", "\u2800", "a\x00", "\ud800", "x" * (CONTENT_LIMIT + 1)])
def test_blank_or_unstorable_content_is_refused(content):
    """SND-12, TXT-01."""
    with pytest.raises(Invalid):
        send(SessionFactory(), content=content)
    assert not Message.objects.exists()


@pytest.mark.parametrize("content", ["👩\u200d👩\u200d👧", "e\u0301\r\n\t ", "\u202bمرحبا", "<!-- -->", "𝒳" * CONTENT_LIMIT])
def test_content_is_kept_as_it_was(content):
    """TXT-05."""
    assert row(send(SessionFactory(), content=content).message).content == content


@pytest.mark.parametrize("prefix", ["subagent-task-", "subagent-result-", "failure-", "remote-", "turn-"])
def test_ids_that_are_ours_are_refused_and_taken_from_ourselves(prefix):
    """LOP-04."""
    target = SessionFactory()
    with pytest.raises(Invalid):
        send(target, message_id=f"{prefix}1")
    assert send(target, message_id=f"{prefix}1", ours=True).created


@pytest.mark.parametrize("message_id", ["a b", "a/b", "é", "a" * 129, "a\n"])
def test_a_malformed_id_is_refused(message_id):
    with pytest.raises(Invalid):
        send(SessionFactory(), message_id=message_id)


def test_an_archived_target_is_gone_and_nothing_is_written():
    target = SessionFactory()
    actions.archive_session(target, now=database_now())
    with pytest.raises(TargetGone):
        send(target)
    assert not Message.objects.exists()


def test_what_was_accepted_before_the_target_was_archived_is_still_answered():
    first = MessageFactory(sender=None, sender_label="x")
    actions.archive_session(first.session, now=database_now())
    assert not send(first.session, message_id=first.message_id, content=first.content, kind=first.kind).created


@override_settings(SUZENT_LANE_LIMIT=2)
def test_a_full_mailbox_refuses_and_drops_nothing():
    """RET-04."""
    target = SessionFactory()
    mail_for(target, 2)
    with pytest.raises(MailboxFull) as refused:
        send(target)
    assert refused.value.extra["retry_after"] > 0
    assert Message.objects.count() == 2


@override_settings(SUZENT_LANE_LIMIT=1)
def test_a_full_mailbox_takes_notices():
    sender = SessionFactory()
    mail_for(sender, 1)
    failed(MessageFactory(sender=sender))
    assert len(notices()) == 1


@override_settings(SUZENT_LANE_LIMIT=1)
def test_settled_mail_takes_no_room():
    target = SessionFactory()
    delivered(mail_for(target, 1)[0])
    assert send(target).created


def test_a_turn_that_lost_its_lane_sends_nothing():
    work = claimed(MessageFactory())
    target = SessionFactory(project=work.message.project)
    with durable():
        lanes.seize(work.hold.key, now=database_now())
    with pytest.raises(lanes.LeaseLost):
        send(target, sender_id=work.message.session_id, hold=work.hold)
    assert not Message.objects.filter(session=target).exists()


# --- hops ------------------------------------------------------------------------------------------------------


def test_what_a_person_sends_has_no_hops():
    assert send(SessionFactory()).message.hops == 0


@pytest.mark.parametrize("with_hold", [True, False])
def test_what_is_sent_while_a_message_is_handled_is_one_hop_further_however_it_is_sent(with_hold):
    work = claimed(MessageFactory())
    sent = send(work.message.sender, sender_id=work.message.session_id, hold=work.hold if with_hold else None).message
    assert (sent.hops, sent.root_id, sent.caused_by) == (1, work.message.root_id, work.message.message_id)


def test_a_reply_counts_too_and_the_longer_chain_wins():
    far = claimed(MessageFactory())
    near = send(far.message.sender, sender_id=far.message.session_id, hold=far.hold).message
    reply = send(SessionFactory(project=near.project), in_reply_to=near.message_id).message
    both = send(far.message.sender, sender_id=far.message.session_id, in_reply_to=reply.message_id).message
    assert (reply.hops, both.hops) == (2, 3)


def test_what_is_sent_after_the_turn_starts_afresh():
    first = delivered(MessageFactory())
    assert send(first.sender, sender_id=first.session_id).message.hops == 0


@override_settings(SUZENT_MAX_HOPS=4)
def test_two_agents_that_answer_each_other_are_stopped_with_the_chain():
    """LOP-01."""
    message = MessageFactory()
    for _ in range(4):
        work = claimed(message)
        message = send(work.message.sender, sender_id=work.message.session_id, hold=work.hold).message
        acknowledge(committed(work))
    work = claimed(message)
    with pytest.raises(HopLimit) as refused:
        send(work.message.sender, sender_id=work.message.session_id, hold=work.hold)
    chain = [link["message_id"] for link in refused.value.extra["chain"]]
    assert (len(chain), chain[-1]) == (5, message.message_id)
    assert Message.objects.count() == 5
    acknowledge(committed(work))
    assert send(work.message.session).message.hops == 0


@override_settings(SUZENT_MAX_HOPS=1)
def test_a_notice_is_sent_beyond_the_limit_of_hops():
    first = claimed(MessageFactory())
    last = send(first.message.sender, sender_id=first.message.session_id, hold=first.hold).message
    fail(claimed(last))
    assert [(notice.hops, notice.root_id) for notice in notices()] == [(2, last.root_id)]


# --- claim -----------------------------------------------------------------------------------------------------


def test_a_claim_begins_the_turn_of_the_head():
    work = claimed(MessageFactory())
    attempt, turn = Attempt.objects.get(), Turn.objects.get()
    assert row(work.message).status == "processing"
    assert (attempt.number, attempt.turn, attempt.epoch, attempt.outcome) == (1, turn, work.hold.epoch, None)
    assert (turn.state, turn.message_ids) == ("running", [work.message.message_id])


def test_a_claim_takes_one_message_of_each_lane_the_lowest_first():
    target = SessionFactory()
    first, *_ = [*mail_for(target, 3), MessageFactory()]
    works = claim()
    assert len(works) == 2
    assert first.pk in {work.message.pk for work in works}
    assert claim() == []


def test_a_claim_takes_no_more_lanes_than_asked():
    for _ in range(3):
        MessageFactory()
    assert [len(claim(limit=2)), len(claim(limit=2))] == [2, 1]


def test_a_lane_without_mail_is_let_go_and_not_due_again():
    message = MessageFactory()
    withdraw(message)
    assert claim() == []
    assert (lane_of(message).due_at, lane_of(message).lease_owner) == (None, None)


@pytest.mark.parametrize("status", ["delivered", "failed"])
def test_settled_mail_is_never_claimed(status):
    """ADM-02."""
    message = message_that_is(status)
    assert message.pk not in {item.message.pk for item in claim()}


def test_before_its_time_the_head_waits_and_nothing_overtakes_it():
    """LSE-14."""
    target = SessionFactory()
    first, second_one = mail_for(target, 2)
    release(claimed(first), wait=minute, charged=True)
    with durable():
        lanes.look_now([target.lane_key], now=database_now())
    assert claim() == []
    assert lane_of(first).due_at == row(first).available_at
    [work] = claim(now=row(first).available_at)
    assert work.message.pk == first.pk
    assert row(second_one).status == "pending"


def test_when_the_head_fails_for_good_the_next_goes():
    """LSE-15."""
    target = SessionFactory()
    first, second_one = mail_for(target, 2)
    failed(first)
    assert claimed(second_one)


def test_different_lanes_do_not_wait_for_each_other():
    release(claimed(MessageFactory()), wait=minute, charged=True)
    assert claimed(MessageFactory())


# --- what a dead holder left -----------------------------------------------------------------------------------


def lose(message, *, now=None):
    """Its process dies: the lease ends and somebody claims again."""
    now = now or database_now()
    lanes.end_leases(lane_of(message).lease_owner, now=now)
    return claim(now=now)


def test_a_lost_turn_is_run_again_at_once_uncharged_as_a_suspect():
    message = MessageFactory()
    assert not claimed(message).alone
    [again] = lose(message)
    assert again.alone
    assert outcomes(message) == ["lost", None]
    assert list(Turn.objects.order_by("pk").values_list("state", flat=True)) == ["failed", "running"]
    assert (row(message).attempts, row(message).losses) == (0, 1)


def test_later_losses_with_a_whole_worker_are_not_held_against_it():
    message = MessageFactory()
    claimed(message)
    for _ in range(10):
        [work] = lose(message)
        assert isinstance(work, Work)
    assert (row(message).attempts, row(message).losses) == (0, 1)


def test_a_dead_holders_lane_is_taken_by_itself_when_the_lease_ends():
    """LSE-04."""
    message = MessageFactory()
    claimed(message)
    assert claim() == []
    [again] = claim(now=lane_of(message).lease_until)
    assert again.message.pk == message.pk


def test_what_was_committed_and_not_acknowledged_is_delivered_without_another_turn():
    """LSE-03."""
    work = committed(claimed(MessageFactory()))
    [judged] = settle(lose(work.message))
    assert judged.judgement.verdict == Verdict.DELIVERED
    assert row(work.message).status == "delivered"
    assert outcomes(work.message) == ["delivered"]
    assert (Turn.objects.count(), work.message.session.entries.count()) == (1, 2)


def test_what_was_asked_to_stop_and_then_lost_is_settled_as_stopped():
    message = MessageFactory()
    claimed(message)
    actions.stop_session(message.session, now=database_now())
    settle(lose(message))
    assert (row(message).status, outcomes(message), Turn.objects.get().state) == ("delivered", ["stopped"], "stopped")


def test_a_stopped_turn_whose_acknowledgement_was_lost_is_settled_as_stopped():
    work = claimed(MessageFactory())
    actions.stop_session(work.message.session, now=database_now())
    committed(work)
    settle(lose(work.message))
    assert (row(work.message).status, outcomes(work.message)) == ("delivered", ["stopped"])


def test_the_lost_turn_of_something_else_that_was_to_stop_does_not_settle_waiting_mail():
    """An interactive turn held the lane, was asked to stop, and died: the mail has not started yet."""
    message = MessageFactory()
    now = database_now()
    with durable():
        [hold] = lanes.claim("web", now=now, limit=1)
        turns.start([turns.Beginning(hold, message.session_id, [], Turn.Origin.INTERACTIVE)], now=now)
    actions.stop_session(message.session, now=now)
    [work] = lose(message)
    assert isinstance(work, Work)
    assert row(message).status == "processing"


def test_mail_of_an_archived_target_fails_the_running_message_too():
    target = SessionFactory()
    running, waiting = mail_for(target, 2)
    claimed(running)
    actions.archive_session(target, now=database_now())
    settle(claim())
    settle(claim())
    assert {(row(message).status, row(message).reason) for message in (running, waiting)} == {("failed", "target_gone")}
    assert Attempt.objects.get(message=running).error == "the session was archived"
    assert claim() == []


def test_mail_of_an_archived_project_fails():
    message = MessageFactory(sender=None, sender_label="x")
    message.project.archived_at = database_now()
    message.project.save(update_fields=["archived_at"])
    settle(claim())
    assert row(message).reason == "target_gone"


def test_expired_mail_fails_at_its_claim():
    message = MessageFactory(valid_for=minute)
    settle(claim(now=database_now() + minute))
    assert row(message).reason == "expired"
    assert not Attempt.objects.exists()


# --- acknowledge -----------------------------------------------------------------------------------------------


def test_an_acknowledged_message_is_delivered_and_its_lane_free():
    message = delivered(MessageFactory())
    assert (message.status, message.lane, message.settled_at is None) == ("delivered", None, False)
    assert (lane_of(message).lease_owner, lane_of(message).due_at) == (None, None)
    assert outcomes(message) == ["delivered"]


def test_an_acknowledgement_goes_on_to_the_next_head_under_the_same_hold():
    first, second_one = mail_for(SessionFactory(), 2)
    work = claimed(first)
    [following] = acknowledge(committed(work), go_on=True)
    assert (following.message.pk, following.hold) == (second_one.pk, work.hold)


def test_one_that_does_not_go_on_leaves_the_lane_due_behind_the_others():
    """A lane with much mail goes to the back."""
    target = SessionFactory()
    first, following = mail_for(target, 2)
    other = MessageFactory()
    assert acknowledge(committed(claimed(first))) == []
    [work] = claim(limit=1)
    assert work.message.pk == other.pk
    assert claim()[0].message.pk == following.pk


@pytest.mark.parametrize("pause", [lanes.pause])
def test_a_paused_lane_is_not_gone_on_with(pause):
    first, second_one = mail_for(SessionFactory(), 2)
    work = claimed(first)
    pause(work.hold.key, now=database_now())
    assert acknowledge(committed(work), go_on=True) == []
    assert claim() == []
    lanes.resume(work.hold.key, now=database_now())
    assert [item.message.pk for item in claim()] == [second_one.pk]


def test_an_acknowledgement_repeated_after_its_answer_was_lost_loses_nothing():
    first, second_one = mail_for(SessionFactory(), 2)
    work = committed(claimed(first))
    acknowledge(work, go_on=True)
    [again] = acknowledge(work, go_on=True)
    assert again.message.pk == second_one.pk
    assert (row(first).status, row(second_one).status) == ("delivered", "processing")
    assert (outcomes(first), outcomes(second_one)) == (["delivered"], ["lost", None])
    assert Turn.objects.running().count() == 1


def test_many_lanes_are_acknowledged_at_once():
    works = [committed(claimed(MessageFactory())) for _ in range(4)]
    transitions.acknowledge([Acknowledgement(work.hold, work.message) for work in works], now=database_now())
    assert set(Message.objects.values_list("status", flat=True)) == {"delivered"}


# --- stale holds change nothing --------------------------------------------------------------------------------

STALE = {
    "acknowledge": lambda work: acknowledge(work, go_on=True) == [],
    "release": lambda work: not release(work, charged=True),
    "fail": lambda work: not fail(work),
    "commit": lambda work: committed(work) is work,
}


@pytest.mark.parametrize("act", STALE.values(), ids=STALE)
def test_who_lost_the_lane_changes_nothing_that_its_successor_did(act):
    message = MessageFactory()
    stale = claimed(message)
    [successor] = lose(message)
    before = (row(message), outcomes(message), Turn.objects.get(pk=successor.turn.pk).state, lane_of(message).lease_owner)
    assert act(stale)
    after = (row(message), outcomes(message), Turn.objects.get(pk=successor.turn.pk).state, lane_of(message).lease_owner)
    assert before == after
    assert row(message).status == "processing"
    assert not message.session.entries.exists()
    acknowledge(committed(successor))
    assert row(message).status == "delivered"


@pytest.mark.parametrize("act", STALE.values(), ids=STALE)
def test_who_lost_the_lane_to_itself_changes_nothing(act):
    message = MessageFactory()
    stale = claimed(message, owner=OTHER)
    [successor] = lose(message)
    assert successor.hold.owner == stale.hold.owner
    assert act(stale)
    assert row(message).status == "processing"
    assert outcomes(message) == ["lost", None]


@pytest.mark.parametrize("act", STALE.values(), ids=STALE)
def test_who_lost_the_lane_does_not_disturb_settled_mail(act):
    message = MessageFactory()
    stale = claimed(message)
    acknowledge(committed(lose(message)[0]))
    assert act(stale)
    assert (row(message).status, outcomes(message), message.session.entries.count()) == ("delivered", ["lost", "delivered"], 2)


# --- release ---------------------------------------------------------------------------------------------------


def test_a_charged_try_is_put_back_for_later():
    message = MessageFactory()
    now = database_now()
    release(claimed(message), now=now, wait=minute, charged=True)
    assert (row(message).status, row(message).attempts, row(message).last_error) == ("pending", 1, "boom")
    assert (row(message).available_at, lane_of(message).due_at) == (now + minute, now + minute)
    assert outcomes(message) == ["retried"]
    assert Turn.objects.get().state == "failed"


def test_the_fifth_charged_try_is_the_last_and_is_counted():
    """ADM-10."""
    message = failed(MessageFactory())
    assert (message.status, message.reason, message.attempts) == ("failed", "exhausted", 5)
    assert outcomes(message) == ["retried"] * 4 + ["failed"]
    assert message.last_error == "It broke."


def test_the_reason_is_a_timeout_when_the_last_try_was_one():
    """LSE-09."""
    message = MessageFactory()
    for _ in range(5):
        release(claimed(message), charged=True, timed_out=True)
    assert (row(message).reason, row(message).attempts) == ("timeout", 5)


def test_a_timeout_makes_the_next_tries_run_alone():
    message = MessageFactory()
    release(claimed(message), charged=True, timed_out=True)
    assert claimed(message).alone


def test_three_deaths_alone_after_one_in_company_fail_it_as_worker_died():
    """LSE-07."""
    message = MessageFactory()
    claimed(message)
    [work] = lose(message)
    for _ in range(3):
        assert isinstance(work, Work)
        release(work, outcome=Outcome.LOST, died_alone=True, error="signal 9")
        work = next(iter(claim()), None)
    assert (row(message).reason, row(message).losses, row(message).attempts) == ("worker_died", 4, 0)
    assert row(message).last_error == "signal 9"


@pytest.mark.parametrize("outcome", [Outcome.RELEASED, Outcome.LOST])
def test_graceful_stops_never_use_it_up(outcome):
    """LSE-08."""
    message = MessageFactory()
    for _ in range(12):
        release(claimed(message), outcome=outcome)
    assert (row(message).status, row(message).attempts) == ("pending", 0)
    assert outcomes(message) == [outcome] * 12


def test_an_unavailable_runtime_costs_nothing_for_a_day():
    """LSE-11."""
    message = MessageFactory()
    start = message.accepted_at
    for hours in range(1, 24):
        now = start + hours * hour
        release(claimed(message, now=now), now=now, wait=second, outcome=Outcome.RELEASED, deferred=True)
    assert (row(message).status, row(message).attempts, row(message).deferrals) == ("pending", 0, 23)
    now = start + day - second
    release(claimed(message, now=now), now=now, wait=second, outcome=Outcome.RELEASED, deferred=True)
    assert (row(message).reason, row(message).deferrals) == ("expired", 24)


def test_an_unavailable_runtime_is_waited_for_as_long_as_the_message_is_valid():
    message = MessageFactory(valid_for=3 * day)
    now = message.accepted_at + 2 * day
    release(claimed(message, now=now), now=now, wait=hour, outcome=Outcome.RELEASED, deferred=True)
    assert row(message).status == "pending"


def test_after_a_redelivery_an_unavailable_runtime_has_another_day():
    message = MessageFactory()
    now = message.accepted_at + day
    release(claimed(message, now=now), now=now, wait=hour, outcome=Outcome.RELEASED, deferred=True)
    redeliver(message, now=now + hour)
    later = now + 3 * hour
    release(claimed(message, now=later), now=later, wait=hour, outcome=Outcome.RELEASED, deferred=True)
    assert row(message).status == "pending"


def test_a_release_after_the_commit_is_a_delivery():
    work = committed(claimed(MessageFactory()))
    assert release(work, charged=True)
    assert (row(work.message).status, outcomes(work.message)) == ("delivered", ["delivered"])


@pytest.mark.parametrize("costs", [{"charged": True}, {"charged": True, "timed_out": True}, {"deferred": True}, {"died_alone": True}, {}])
def test_however_a_turn_ends_after_a_stop_request_it_is_settled_as_stopped(costs):
    message = MessageFactory()
    work = claimed(message)
    actions.stop_session(message.session, now=database_now())
    release(work, **costs)
    assert (row(message).status, outcomes(message), Turn.objects.get().state) == ("delivered", ["stopped"], "stopped")
    assert row(message).attempts == 0
    assert not notices()


def test_mail_behind_a_stopped_message_runs_next():
    """STP-01."""
    first, following = mail_for(SessionFactory(), 2)
    work = claimed(first)
    actions.stop_session(first.session, now=database_now())
    release(work)
    assert claimed(following)


def test_a_pending_message_is_not_stopped_by_a_stop():
    message = MessageFactory()
    assert not actions.stop_session(message.session, now=database_now())
    assert claimed(message)


def test_an_error_that_no_database_holds_is_still_told():
    """TXT-01."""
    message = MessageFactory()
    release(claimed(message), error="a\x00\ud800", charged=True)
    assert row(message).last_error == "a\u2400\ufffd"


# --- fail and its notice ---------------------------------------------------------------------------------------


def test_a_failure_is_told_to_the_sender_once():
    message = MessageFactory()
    fail(claimed(message))
    [notice] = notices()
    assert (notice.message_id, notice.session_id, notice.sender_id) == (f"failure-{message.pk}-0", message.sender_id, None)
    assert (notice.in_reply_to, notice.hops) == (message.message_id, 1)
    assert all(part in notice.content for part in (message.message_id, message.target, "rejected", "no"))


def test_a_failure_after_each_redelivery_is_told_again():
    message = MessageFactory()
    for _ in range(3):
        fail(claimed(message))
        redeliver(message)
    assert [notice.message_id for notice in notices()] == [f"failure-{message.pk}-{number}" for number in range(3)]


def test_failing_twice_tells_once():
    work = claimed(MessageFactory())
    assert fail(work)
    assert not fail(work)
    assert len(notices()) == 1


def test_what_was_withdrawn_between_judgement_and_failure_stays_withdrawn_and_is_told_once():
    message = MessageFactory(valid_for=minute)
    [judged] = claim(now=database_now() + minute)
    withdraw(message, by_sender=False)
    settle([judged])
    assert (row(message).reason, len(notices())) == ("withdrawn", 1)
    assert lane_of(message).lease_owner is None


def test_a_fail_that_finds_the_marker_delivers():
    work = committed(claimed(MessageFactory()))
    assert fail(work)
    assert row(work.message).status == "delivered"
    assert not notices()


def test_there_is_no_notice_about_a_notice():
    message = MessageFactory()
    fail(claimed(message))
    fail(claimed(notices()[0]))
    assert len(notices()) == 1
    assert notices()[0].status == "failed"


def test_there_is_no_notice_for_a_person_a_task_or_an_archived_sender():
    fail(claimed(MessageFactory(sender=None, sender_label="olga")))
    fail(claimed(MessageFactory(kind=Message.Kind.SUBAGENT_TASK)))
    archived = MessageFactory()
    actions.archive_session(archived.sender, now=database_now())
    fail(claimed(archived))
    assert not notices()


def test_a_notice_fits_however_long_the_error():
    message = MessageFactory()
    fail(claimed(message), error="é" * 50_000)
    assert len(notices()[0].content) <= CONTENT_LIMIT


def test_a_failed_message_needs_a_reason():
    message = MessageFactory()
    with pytest.raises(IntegrityError), transaction.atomic():
        Message.objects.filter(pk=message.pk).update(status="failed", lane=None, settled_at=database_now())


# --- withdraw --------------------------------------------------------------------------------------------------


def test_a_waiting_message_is_withdrawn_and_the_next_goes_at_once():
    first, following = mail_for(SessionFactory(), 2)
    release(claimed(first), wait=hour, charged=True)
    withdraw(first)
    assert (row(first).status, row(first).reason) == ("failed", "withdrawn")
    assert claimed(following)


@pytest.mark.parametrize("status", ["processing", "delivered", "failed"])
def test_what_has_started_cannot_be_withdrawn(status):
    message = message_that_is(status)
    reason = row(message).reason
    with pytest.raises(NotPending) as refused:
        withdraw(message)
    assert refused.value.extra["status"] == status
    assert (row(message).status, row(message).reason) == (status, reason)
    assert not message.interventions.exists()


@pytest.mark.parametrize(("by_sender", "told"), [(True, 0), (False, 1)])
def test_only_a_sender_that_did_not_do_it_is_told_of_a_withdrawal(by_sender, told):
    withdraw(MessageFactory(), by_sender=by_sender)
    assert len(notices()) == told


def test_withdrawing_notes_who_and_why():
    message = MessageFactory()
    transitions.withdraw(message, who="olga", by_sender=False, now=database_now(), reason="wrong agent")
    done = message.interventions.get()
    assert (done.verb, done.who, done.why) == ("withdraw", "olga", "wrong agent")


# --- redeliver -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["pending", "processing", "delivered"])
def test_only_a_failed_message_is_redelivered(status):
    """ADM-02."""
    message = message_that_is(status)
    with pytest.raises(NotFailed) as refused:
        redeliver(message)
    assert refused.value.extra["status"] == status
    assert row(message).redeliveries == 0


def test_a_redelivered_message_has_five_more_attempts_under_its_own_id():
    message = failed(MessageFactory())
    again = redeliver(message)
    assert (again.status, again.reason, again.message_id, again.redeliveries) == ("pending", None, message.message_id, 1)
    for _ in range(5):
        assert row(message).status == "pending"
        release(claimed(message), charged=True)
    assert (row(message).status, row(message).attempts) == ("failed", 10)
    assert len(outcomes(message)) == 10


def test_a_redelivered_message_has_its_whole_validity_again():
    message = MessageFactory(valid_for=hour)
    now = database_now() + 2 * hour
    settle(claim(now=now))
    assert redeliver(message, now=now).valid_until == now + hour


def test_a_redelivered_message_that_killed_its_processes_still_runs_alone_and_has_three_more():
    message = MessageFactory()
    claimed(message)
    [work] = lose(message)
    for _ in range(3):
        release(work, outcome=Outcome.LOST, died_alone=True)
        work = next(iter(claim()), None)
    redeliver(message)
    for _ in range(3):
        work = claimed(message)
        assert work.alone
        release(work, outcome=Outcome.LOST, died_alone=True)
    assert row(message).reason == "worker_died"


def test_a_redelivered_message_that_had_its_turn_after_all_is_delivered_without_another():
    """ADM-03."""
    message = MessageFactory()
    work = committed(claimed(message))
    acknowledge(work)
    other = MessageFactory(target=message.session, sender=message.sender)
    failed(other)
    with durable():  # the marker of the other one comes to light: its turn had been committed
        turns.DeliveryMarker.objects.create(
            session=other.session, source="message", key=other.message_id, digest="", seq=1, created_at=database_now()
        )
    redeliver(other)
    settle(claim())
    assert row(other).status == "delivered"
    assert Turn.objects.filter(state="committed").count() == 1


def test_an_archived_target_takes_no_redelivery():
    message = failed(MessageFactory())
    actions.archive_session(message.session, now=database_now())
    with pytest.raises(TargetGone):
        redeliver(message)


def test_a_task_is_not_redelivered():
    message = MessageFactory(kind=Message.Kind.SUBAGENT_TASK)
    failed(message)
    with pytest.raises(transitions.TaskEnded):
        redeliver(message)


def test_a_redelivered_message_goes_before_those_that_came_after_it():
    first, following = mail_for(SessionFactory(), 2)
    failed(first)
    redeliver(first)
    assert claimed(first)
    assert row(following).status == "pending"


# --- sweep -----------------------------------------------------------------------------------------------------


def test_the_sweep_fails_what_expired_anywhere_in_a_lane():
    target = SessionFactory()
    head, *_ = mail_for(target, 2)
    claimed(head)
    message = MessageFactory(target=target, sender=SessionFactory(project=target.project), valid_for=minute)
    swept = transitions.sweep(now=database_now() + minute)
    assert (swept.expired, row(message).reason, len(notices())) == (1, "expired", 1)
    assert transitions.sweep(now=database_now() + minute).expired == 0


def test_the_sweep_leaves_what_runs():
    message = MessageFactory(valid_for=minute)
    claimed(message)
    assert transitions.sweep(now=database_now() + minute).expired == 0
    assert row(message).status == "processing"


def test_the_sweep_leaves_a_sound_installation_alone():
    release(claimed(MessageFactory()), wait=hour, charged=True)
    delivered(MessageFactory())
    MessageFactory()
    assert transitions.sweep(now=database_now()) == Swept(expired=0, repaired=0)


def test_the_sweep_makes_a_stranded_lane_due():
    message = MessageFactory()
    Lane.objects.update(due_at=None)  # what should not happen
    assert claim() == []
    assert transitions.sweep(now=database_now()).repaired == 1
    assert claimed(message)


def test_a_clock_set_back_strands_no_mail():
    """Accepted while the clock was a day ahead."""
    message = MessageFactory(now=database_now() + day)
    assert claim() == []
    transitions.sweep(now=database_now())
    assert claimed(message)


def test_a_clock_set_back_strands_no_retry():
    message = MessageFactory()
    ahead = database_now() + day
    release(claimed(message), now=ahead, wait=minute, charged=True)
    assert claim() == []
    transitions.sweep(now=database_now())
    assert claimed(message)


def test_a_clock_set_forward_only_makes_mail_due_sooner():
    message = MessageFactory()
    release(claimed(message), wait=minute, charged=True)
    assert [work.message.pk for work in claim(now=database_now() + day)] == [message.pk]


# --- paused ----------------------------------------------------------------------------------------------------


def test_mail_for_a_paused_lane_waits_uncharged_and_runs_when_it_goes_on():
    message = MessageFactory()
    lanes.pause(message.session.lane_key, now=database_now())
    assert claim(now=database_now() + day) == []
    lanes.resume(message.session.lane_key, now=database_now())
    assert claimed(message)
    assert row(message).attempts == 0


def test_a_session_in_another_project_is_no_matter_of_transitions_but_ids_stay_apart():
    one, two = ProjectFactory(), ProjectFactory()
    for project in (one, two):
        send(SessionFactory(project=project), message_id="same")
    assert Message.objects.filter(message_id="same").count() == Session.objects.count() == 2
