"""Races between connections. Who is stopped before its commit is ordered by events; the rest is let go at a barrier.

On SQLite one writer at a time is the database's own rule, and our turnstile queues the threads of a process: what
needs two open write transactions runs on PostgreSQL only.
"""

import threading
import time
from datetime import timedelta

import pytest
from django.db import connection

from inbox_app import retention, transitions
from inbox_app.deliveries import Acknowledgement, Draft, Judged, Setback, Work
from inbox_app.errors import MessageIdConflict, NotFailed, NotPending, TargetGone
from inbox_app.judgement import Judgement, Verdict
from inbox_app.models import Attempt, DedupeKey, Message
from sessions_app import actions, lanes, turns
from sessions_app.clock import database_now
from sessions_app.models import Lane, Turn
from suzent_site.errors import NotFound
from tests.factories import MessageFactory, ProjectFactory, SessionFactory, claimed, committed, failed

pytestmark = pytest.mark.django_db(transaction=True)


def row(message):
    return Message.objects.get(pk=message.pk)


def send(target, message_id="", content="hello", sender=None, hold=None):
    draft = Draft(
        target.project_id, target, content, Message.Kind.USER_MESSAGE, message_id=message_id, sender_id=sender and sender.pk, hold=hold
    )
    return transitions.accept(draft, now=database_now())


def claim(owner="other"):
    return transitions.claim(owner, now=database_now(), limit=100)


def acknowledge(work, **about):
    return transitions.acknowledge([Acknowledgement(work.hold, work.message, **about)], now=database_now())


def withdraw(message):
    return transitions.withdraw(message, who="olga", by_sender=True, now=database_now())


def redeliver(message):
    return transitions.redeliver(message, who="olga", now=database_now())


# --- one id ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("_round", range(3))
def test_twenty_five_first_uses_of_one_id_make_one_row(together, _round):
    """SND-04."""
    target = SessionFactory()
    answers = together(*[lambda: send(target, "same")] * 25)
    assert {answer.message.message_id for answer in answers} == {"same"}
    assert sum(answer.created for answer in answers) == 1
    assert Message.objects.count() == 1


def test_one_id_used_at_once_for_two_targets_is_kept_for_one(together):
    """SND-03."""
    project = ProjectFactory()
    targets = [SessionFactory(project=project) for _ in range(6)]
    answers = together(*[lambda to=to: send(to, "same") for to in targets])
    assert sorted(type(answer).__name__ for answer in answers) == ["Accepted", *["MessageIdConflict"] * 5]
    assert Message.objects.count() == 1


@pytest.mark.postgresql
def test_the_second_use_of_an_id_waits_for_the_first_and_answers_with_it(stopped_before_commit):
    project = ProjectFactory()
    one, two = SessionFactory(project=project), SessionFactory(project=project)
    first = stopped_before_commit(lambda: send(one, "same"))
    second = threading.Thread(target=lambda: outcome.append(answer_of(lambda: send(two, "same"))))
    outcome = []
    second.start()
    first.finish()
    second.join(20)
    assert isinstance(outcome[0], MessageIdConflict)


def answer_of(act):
    try:
        return act()
    except Exception as error:  # noqa: BLE001  # an error is an answer too
        return error
    finally:
        connection.close()


# --- accept against the lane -----------------------------------------------------------------------------------


@pytest.mark.postgresql
def test_a_message_accepted_while_its_lane_is_let_go_is_not_forgotten(stopped_before_commit, together):
    """LSE-17: the accept waits for the lane, and the lane is due after both."""
    work = committed(claimed(MessageFactory()))
    leaving = stopped_before_commit(lambda: acknowledge(work))
    late = []
    accepting = threading.Thread(target=lambda: late.append(answer_of(lambda: send(work.message.session))))
    accepting.start()
    time.sleep(0.2)
    assert not late
    leaving.finish()
    accepting.join(20)
    assert late[0].created
    assert [item.message.pk for item in claim()] == [late[0].message.pk]


@pytest.mark.postgresql
def test_a_lane_let_go_while_a_message_is_being_accepted_is_due_after_both(stopped_before_commit):
    work = committed(claimed(MessageFactory()))
    accepting = stopped_before_commit(lambda: send(work.message.session))
    leaving = threading.Thread(target=lambda: answer_of(lambda: acknowledge(work)))
    leaving.start()
    accepted = accepting.finish()
    leaving.join(20)
    assert row(work.message).status == "delivered"
    assert [item.message.pk for item in claim()] == [accepted.message.pk]


def test_no_accept_is_lost_among_many_acknowledgements(together):
    target = SessionFactory()
    for _ in range(10):
        send(target)
        [work] = claim()
        results = together(lambda work=work: acknowledge(committed(work)), lambda: send(target))
        assert not [result for result in results if isinstance(result, Exception)]
        [following] = claim()
        assert acknowledge(committed(following)) == []
    assert set(Message.objects.values_list("status", flat=True)) == {"delivered"}
    assert Message.objects.count() == 20


@pytest.mark.postgresql
def test_a_claim_passes_over_a_lane_that_is_being_sent_to(stopped_before_commit):
    accepting = stopped_before_commit(lambda: send(SessionFactory()))
    other = MessageFactory()
    assert [item.message.pk for item in claim()] == [other.pk]
    accepting.finish()
    assert len(claim()) == 1


@pytest.mark.postgresql
def test_the_order_of_ids_is_the_order_of_commits_in_a_lane(stopped_before_commit):
    """The second sender gets its id only after the first has committed: the lane comes before the id."""
    target = SessionFactory()
    first = stopped_before_commit(lambda: send(target, "first"))
    second = threading.Thread(target=lambda: answer_of(lambda: send(target, "second")))
    second.start()
    time.sleep(0.2)
    assert claim() == []
    first.finish()
    second.join(20)
    assert list(Message.objects.order_by("pk").values_list("message_id", flat=True)) == ["first", "second"]
    assert claim()[0].message.message_id == "first"


# --- claim against others --------------------------------------------------------------------------------------


def test_two_owners_never_take_one_lane(together):
    for _ in range(6):
        MessageFactory()
    found = together(*[lambda owner=f"owner-{number}": claim(owner) for number in range(4)])
    taken = [work.message.pk for works in found for work in works]
    assert len(taken) == len(set(taken)) == 6
    assert Attempt.objects.count() == Turn.objects.count() == 6


@pytest.mark.postgresql
def test_a_second_claim_does_not_wait_for_the_first(stopped_before_commit):
    MessageFactory()
    first = stopped_before_commit(lambda: claim("one"))
    began = time.monotonic()
    assert claim("two") == []
    assert time.monotonic() - began < 5
    assert len(first.finish()) == 1


@pytest.mark.parametrize("_round", range(5))
def test_withdrawing_and_claiming_at_once_one_wins(together, _round):
    message = MessageFactory()
    claimed_ones, withdrawn = together(claim, lambda: withdraw(message))
    if isinstance(withdrawn, NotPending):
        assert [work.message.pk for work in claimed_ones] == [message.pk]
        assert row(message).status == "processing"
    else:
        assert claimed_ones == []
        assert (row(message).reason, Attempt.objects.count()) == ("withdrawn", 0)


@pytest.mark.postgresql
def test_a_withdrawal_waits_for_the_claim_and_is_refused(stopped_before_commit):
    message = MessageFactory()
    claiming = stopped_before_commit(claim)
    answers = []
    withdrawing = threading.Thread(target=lambda: answers.append(answer_of(lambda: withdraw(message))))
    withdrawing.start()
    claiming.finish()
    withdrawing.join(20)
    assert isinstance(answers[0], NotPending)


@pytest.mark.parametrize("_round", range(5))
def test_archiving_and_claiming_at_once_leave_no_turn_that_can_commit(together, _round):
    """SND-09."""
    message = MessageFactory(sender=None, sender_label="x")
    found, _ = together(claim, lambda: actions.archive_session(message.session, now=database_now()))
    for work in found:
        if isinstance(work, Work):
            committed(work)
            acknowledge(work)
        else:
            transitions.fail(work, now=database_now())
    for judged in claim():
        transitions.fail(judged, now=database_now())
    assert (row(message).status, row(message).reason) == ("failed", "target_gone")
    assert not message.session.entries.exists()
    assert not Turn.objects.running().exists()


@pytest.mark.parametrize("_round", range(5))
def test_archiving_and_committing_at_once_end_in_one_of_two_ways(together, _round):
    work = claimed(MessageFactory(sender=None, sender_label="x"))
    together(lambda: committed(work), lambda: actions.archive_session(work.message.session, now=database_now()))
    settled_by_claim = claim()
    for judged in settled_by_claim:
        if judged.judgement.verdict == "delivered":
            acknowledge(judged)
        else:
            transitions.fail(judged, now=database_now())
    entries, status = work.message.session.entries.count(), row(work.message).status
    assert (entries, status) in {(2, "delivered"), (0, "failed")}


@pytest.mark.postgresql
def test_nothing_is_accepted_by_a_target_that_is_being_archived(stopped_before_commit):
    target = SessionFactory()
    archiving = stopped_before_commit(lambda: actions.archive_session(target, now=database_now()))
    answers = []
    sending = threading.Thread(target=lambda: answers.append(answer_of(lambda: send(target))))
    sending.start()
    archiving.finish()
    sending.join(20)
    assert isinstance(answers[0], TargetGone)
    assert not Message.objects.exists()


# --- redeliver -------------------------------------------------------------------------------------------------


def test_two_operators_redeliver_once(together):
    """ADM-02."""
    message = failed(MessageFactory(sender=None, sender_label="x"))
    answers = together(*[lambda: redeliver(message)] * 4)
    assert sorted(type(answer).__name__ for answer in answers) == ["Message", *["NotFailed"] * 3]
    assert row(message).redeliveries == message.interventions.count() == 1


@pytest.mark.parametrize("_round", range(5))
def test_redelivering_and_acknowledging_at_once_do_not_run_it_twice(together, _round):
    """ADM-03."""
    work = committed(claimed(MessageFactory(sender=None, sender_label="x")))
    _, answer = together(lambda: acknowledge(work), lambda: redeliver(work.message))
    assert isinstance(answer, NotFailed)
    assert (row(work.message).status, Turn.objects.count(), claim()) == ("delivered", 1, [])


@pytest.mark.parametrize("_round", range(5))
def test_redelivering_while_it_fails_tells_the_sender_once_and_runs_it_once(together, _round):
    message = MessageFactory()
    work = claimed(message)
    judged = Judged(work.hold, work.message, Judgement(Verdict.FAIL, Message.Reason.REJECTED))
    _, answer = together(lambda: transitions.fail(judged, now=database_now()), lambda: redeliver(message))
    redelivered = not isinstance(answer, NotFailed)
    assert row(message).status == ("pending" if redelivered else "failed")
    assert Message.objects.filter(kind="delivery_failure").count() == 1
    assert len([item for item in claim() if item.message.pk == message.pk]) == int(redelivered)


# --- deadlocks -------------------------------------------------------------------------------------------------


def test_crosswise_sends_between_two_turns_do_not_deadlock(together):
    project = ProjectFactory()
    a, b = SessionFactory(project=project), SessionFactory(project=project)
    works = {one: claimed(MessageFactory(sender=None, sender_label="x", target=one)) for one in (a, b)}
    began = time.monotonic()

    def chat(one, other):
        return [send(other, sender=one, hold=works[one].hold) for _ in range(20)]

    results = together(lambda: chat(a, b), lambda: chat(b, a), lambda: chat(a, b), lambda: chat(b, a))
    assert [len(result) for result in results] == [20] * 4
    assert Message.objects.count() == 82
    assert time.monotonic() - began < 20


def test_batches_commits_stops_and_renewals_crosswise_do_not_deadlock(together):
    parent = SessionFactory()
    family = [parent, *[SessionFactory(project=parent.project, parent=parent) for _ in range(5)]]
    for _ in range(5):
        works = [claimed(MessageFactory(sender=None, sender_label="x", target=one)) for one in family]
        commits = [turns.Commit(work.turn, work.hold, [], []) for work in works]
        results = together(
            lambda commits=commits: turns.commit(commits[::-1], now=database_now()),
            lambda: actions.stop_session(parent, now=database_now()),
            lambda: lanes.renew("shift:test", now=database_now()),
            lambda works=works: [acknowledge(work) for work in works[:2]],
            lambda: transitions.sweep(now=database_now()),
        )
        assert not [result for result in results if isinstance(result, Exception)]
        for work in works:
            acknowledge(work)
        Turn.objects.running().delete()


def test_two_that_fail_mail_of_each_other_do_not_deadlock(together):
    """Each failure locks its own lane and the sender's."""
    project = ProjectFactory()
    a, b = SessionFactory(project=project), SessionFactory(project=project)
    setback = Setback("no", database_now(), charged=True)
    for _ in range(5):
        works = [claimed(MessageFactory(sender=one, target=other)) for one, other in ((a, b), (b, a))]
        Message.objects.filter(pk__in=[work.message.pk for work in works]).update(max_attempts=1)
        for work in works:
            work.message.max_attempts = 1
        results = together(*[lambda work=work, setback=setback: transitions.release(work, setback, now=database_now()) for work in works])
        assert results == [True, True]
        for notice in Message.objects.filter(kind="delivery_failure", status="pending"):
            withdraw(notice)
    assert Message.objects.filter(kind="delivery_failure").count() == 10


# --- the lease -------------------------------------------------------------------------------------------------


@pytest.mark.postgresql
def test_a_commit_that_waited_for_its_lane_and_lost_it_is_refused(stopped_before_commit):
    work = claimed(MessageFactory())
    taking = stopped_before_commit(lambda: lanes.end_leases("shift:test", now=database_now()))
    answers = []
    late = threading.Thread(
        target=lambda: answers.append(answer_of(lambda: turns.commit([turns.Commit(work.turn, work.hold, [], [])], now=database_now())))
    )
    late.start()
    taking.finish()
    late.join(20)
    assert answers == [{}]
    assert Lane.objects.get(pk=work.hold.key).lease_owner is None


def test_renewing_against_the_end_of_a_lease_leaves_a_whole_lane(together):
    for _ in range(5):
        message = MessageFactory()
        claimed(message)
        results = together(
            lambda: lanes.renew("shift:test", now=database_now()), lambda: lanes.end_leases("shift:test", now=database_now())
        )
        assert not [result for result in results if isinstance(result, Exception)]
        assert Lane.objects.get(pk=message.session.lane_key).lease_owner is None


# --- purge against redelivery ----------------------------------------------------------------------------------


def purge():
    return retention.purge(now=database_now() + timedelta(days=31), rest=lambda _seconds: False).gone["messages"]


@pytest.mark.postgresql
def test_a_message_that_is_being_redelivered_is_not_purged(stopped_before_commit):
    """RET-01."""
    message = failed(MessageFactory(sender=None))
    redelivery = stopped_before_commit(lambda: redeliver(message))
    assert purge() == 0
    assert redelivery.finish().status == "pending"


@pytest.mark.postgresql
def test_a_message_that_is_being_purged_is_not_redelivered_and_its_id_stays_used(stopped_before_commit, together):
    message = failed(MessageFactory(sender=None, kind=Message.Kind.USER_MESSAGE))
    target, content = message.session, message.content
    purging = stopped_before_commit(purge)
    threading.Timer(0.3, purging.finish).start()
    redelivered, again, other = together(
        lambda: redeliver(message), lambda: send(target, message.message_id, content), lambda: send(target, message.message_id, "other")
    )
    assert purging.finish() == 1
    assert isinstance(redelivered, NotFound)
    assert (again.created, again.message.status) == (False, "failed")
    assert isinstance(other, MessageIdConflict)
    assert Message.objects.count() == 0
    assert DedupeKey.objects.count() == 1
