"""The one door through which a message changes: the only writer of ``Message.status``.

``accept claim acknowledge release fail withdraw redeliver sweep``, and no other verb. Each is one short durable
transaction: a guarded UPDATE that names the state it believes in, plus the Attempt row (``attempts``). No row changed is an answer
(someone was first), not an error. Every transaction locks the lanes it touches first, in key order.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence
from datetime import datetime, timedelta
from itertools import takewhile

from django.db import IntegrityError
from django.db.models import F
from django.db.models.functions import Coalesce

from inbox_app import attempts, limits, notices, results, room, transports
from inbox_app.chains import Chain, chain_of
from inbox_app.content import check_content, check_message_id
from inbox_app.deliveries import (
    Accepted,
    Acknowledgement,
    Draft,
    Job,
    Judged,
    Next,
    Parcel,
    Setback,
    Swept,
    Work,
)
from inbox_app.errors import (
    MaybeDelivered,
    MessageIdConflict,
    NotFailed,
    NotPending,
    TargetGone,
    TaskEnded,
)
from inbox_app.judgement import Evidence, Verdict, given_up, judge
from inbox_app.models import Attempt, DedupeKey, Intervention, Message
from inbox_app.repairs import repair_lanes
from inbox_app.tries import used_up
from sessions_app import lanes, turns
from sessions_app.actions import batch_size
from sessions_app.cron import runs
from sessions_app.cron.runs import CronWork
from sessions_app.lanes import Hold
from sessions_app.models import Lane, Session, Turn
from sessions_app.text import storable
from suzent_site.errors import NotFound
from suzent_site.faults import crash_point
from suzent_site.transactions import durable

SWEEP_BATCH = 200  # messages that one sweep expires, each in a transaction of its own: the next sweep is a minute away


# --- accept ----------------------------------------------------------------------------------------------------
def accept(draft: Draft, *, now: datetime) -> Accepted:
    """Commit the message to the target's inbox; when this returns it will be delivered or visibly fail.

    The same id with the same sender, target, content, kind and payload answers with the first row.
    Raises Invalid, MessageIdConflict, TargetGone, RateLimited, MailboxFull, HopLimit, and LeaseLost for a turn that lost its lane.
    """
    check_content(draft.content)
    check_message_id(draft.message_id, ours=draft.ours)
    limits.senders.take(draft.project_id, f"session {draft.sender_id}" if draft.sender_id else f"label {draft.sender_label}")
    try:
        return _accept(draft, now=now)
    except IntegrityError:  # another connection used the id for another target in the same instant
        return _accept(draft, now=now)


def _accept(draft: Draft, *, now: datetime) -> Accepted:
    with durable():
        _lock_to_accept(draft, now=now)
        earlier = _user_of_id(draft.project_id, draft.message_id) if draft.message_id else None
        if earlier is not None:
            return _answer_again(draft, earlier)
        room.refuse_unless_open_with_room(draft)
        message = _insert(draft, chain=_chain(draft), now=now)
        crash_point("accept.before_commit")
    return Accepted(message, created=True)


def accept_with_target(draft: Draft, *, now: datetime) -> Message:
    """``accept`` for a target that the caller's transaction makes: nobody else can have used its lane. A step.

    Raises Invalid, HopLimit.
    """
    check_content(draft.content)
    lanes.mark_due(draft.target.lane_key, now=now)
    return _insert(draft, chain=_chain(draft), now=now)


def _lock_to_accept(draft: Draft, *, now: datetime) -> None:
    if draft.hold is not None:
        lanes.prove(draft.hold, lanes.lock({draft.hold.key, draft.target.lane_key}))
    if not lanes.mark_due(draft.target.lane_key, now=now):
        raise TargetGone


def _user_of_id(project_id: str, message_id: str) -> Message | DedupeKey | None:
    """Asked in this order: purging moves an id from the one to the other."""
    for model in (Message, DedupeKey):
        found: Message | DedupeKey | None = model.objects.filter(project=project_id, message_id=message_id).first()
        if found is not None:
            return found
    return None


def _answer_again(draft: Draft, earlier: Message | DedupeKey) -> Accepted:
    if earlier.digest != draft.digest:
        raise MessageIdConflict
    return Accepted(earlier, created=False)


def _chain(draft: Draft) -> Chain:
    if draft.kind == Message.Kind.REMOTE_AGENT_MESSAGE:
        return Chain(hops=draft.hops)
    limited = draft.kind not in room.NEVER_REFUSED
    return chain_of(draft.project_id, sender_id=draft.sender_id, in_reply_to=draft.in_reply_to, limited=limited)


def _insert(draft: Draft, *, chain: Chain, now: datetime) -> Message:
    message_id = draft.message_id or f"msg_{secrets.token_hex(12)}"
    transport = transports.named(draft.transport)
    lifetime = transport.lifetime(draft.valid_for)
    message = Message.objects.create(
        project_id=draft.project_id, message_id=message_id, sender_id=draft.sender_id, sender_label=draft.sender_label,
        target=draft.target.agent_id, session=draft.target if isinstance(draft.target, Session) else None,
        transport=draft.transport, kind=draft.kind, content=draft.content, payload=draft.payload,
        in_reply_to=draft.in_reply_to, root_id=chain.root_id or message_id, caused_by=chain.caused_by, hops=chain.hops,
        max_attempts=transport.attempts, lane=draft.target.lane_key, accepted_at=now, available_at=now,
        valid_until=None if lifetime is None else now + lifetime,
    )  # fmt: skip
    lanes.wake_on_commit()
    return message


# --- claim -----------------------------------------------------------------------------------------------------
def claim(owner: str, *, now: datetime, limit: int, remote: int | None = None) -> list[Next]:
    """Take up to ``limit`` due lanes and judge their heads. Lanes that turn out to have nothing are let go at once.

    ``remote``: how many of them may lead to other machines, all if it is not said.
    """
    with durable():
        holds = lanes.claim(owner, now=now, limit=limit, remote=remote)
        turns.close_lost([hold.key.removeprefix("agent:") for hold in holds], now=now)
        runs.close_lost([hold.key for hold in holds], now=now)
        found = _go_on(holds, now=now)
    crash_point("claim.after_commit")
    if any(isinstance(item, CronWork) for item in found):
        crash_point("cron.after_claim")
    return found


def _go_on(holds: Sequence[Hold], *, now: datetime) -> list[Next]:
    """What each held lane does next: a cron run that is due, before any mail; else its head. A step."""
    due = runs.begin(holds, now=now)
    busy = {work.hold for work in due}
    return [*due, *_see_to_mail([hold for hold in holds if hold not in busy], now=now)]


def _see_to_mail(holds: Sequence[Hold], *, now: datetime) -> list[Next]:
    """Judge the head of each held lane: start it, hand it out to be settled, or let the lane go. A step."""
    heads = Message.objects.heads([hold.key for hold in holds])
    marked = turns.marked({(head.session_id, head.message_id) for head in heads.values() if head.session_id is not None})
    judged = [_judge(hold, heads[hold.key], marked=marked, now=now) for hold in holds if hold.key in heads]
    _let_go([hold for hold in holds if hold.key not in heads], {}, now=now)
    _let_go([item.hold for item in judged if item.judgement.verdict == Verdict.WAIT], heads, now=now)
    runnable = [item for item in judged if item.judgement.verdict == Verdict.RUN]
    settled = [item for item in judged if item.judgement.verdict not in {Verdict.RUN, Verdict.WAIT}]
    return [*_start(runnable, now=now), *settled]  # what has begun first: settling the others may go wrong


def _judge(hold: Hold, head: Message, *, marked: Collection[tuple[str, str]], now: datetime) -> Judged:
    evidence = _evidence(head, marked=marked)
    if head.status == Message.Status.PROCESSING and not evidence.marked:
        _close_lost_attempt(head, stopped=evidence.stop_requested, now=now)
    return Judged(hold, head, judge(head, evidence, now=now))


def _evidence(head: Message, *, marked: Collection[tuple[str, str]]) -> Evidence:
    is_marked = (str(head.session_id), head.message_id) in marked
    return Evidence(
        marked=is_marked,
        stop_requested=head.status == Message.Status.PROCESSING and attempts.ended_as_stopped(head),
        archived=transports.of(head).is_gone(head),
    )


def _close_lost_attempt(head: Message, *, stopped: bool, now: datetime) -> None:
    """The process died with this turn. The first loss is free and makes it a suspect; later ones are told by its shift."""
    lost = Attempt.Outcome.STOPPED if stopped else Attempt.Outcome.LOST
    error = attempts.how_its_turn_ended(head)
    attempts.close([head.pk], outcome=lost, error=error, now=now)
    if head.session_id is None:
        _remember_that_it_may_be_there(head)
    elif head.losses == 0 and not stopped:
        head.losses, head.last_error = 1, error
        head.save(update_fields=["losses", "last_error"])


def _remember_that_it_may_be_there(message: Message) -> None:
    message.maybe_delivered = True
    message.save(update_fields=["maybe_delivered"])


def _start(judged: Sequence[Judged], *, now: datetime) -> list[Work | Parcel]:
    if not judged:
        return []
    taken = [(item.message, *_followers(item.message, now=now)) for item in judged]
    begun = list(zip(judged, taken, _begin_turns(judged, taken, now=now), strict=True))
    _begin_tasks([message for messages in taken for message in messages if message.is_task and message.started_at is None], now=now)
    Message.objects.unsettled().filter(pk__in=[message.pk for messages in taken for message in messages]).update(
        status=Message.Status.PROCESSING, started_at=Coalesce("started_at", now)
    )
    opened = attempts.begin([(item.hold, messages, turn) for item, messages, turn in begun], now=now)
    return [_in_hand(item.hold, messages, turn, opened) for item, messages, turn in begun]


def _in_hand(hold: Hold, messages: Sequence[Message], turn: Turn | None, opened: dict[int, Attempt]) -> Work | Parcel:
    head, *followers = [(message, opened[message.pk]) for message in messages]
    return Parcel(hold, *head) if turn is None else Work(hold, *head, turn, followers=tuple(followers))


def _begin_turns(judged: Sequence[Judged], taken: Sequence[tuple[Message, ...]], *, now: datetime) -> list[Turn | None]:
    """The turn of each; None for what has no session here."""
    begun = turns.start([
        turns.Beginning(item.hold, str(item.message.session_id), [message.message_id for message in messages])
        for item, messages in zip(judged, taken, strict=True) if item.message.session_id is not None
    ], now=now)  # fmt: skip
    in_order = iter(begun)
    return [None if item.message.session_id is None else next(in_order) for item in judged]


def _begin_tasks(messages: Sequence[Message], *, now: datetime) -> None:
    """Their time runs from here: past it the message is not valid any more, wherever it is."""
    for message in messages:
        results.begin(message, now=now)
        if seconds := message.payload.get("timeout"):
            message.valid_until = now + timedelta(seconds=seconds)
            message.save(update_fields=["valid_until"])


def _followers(head: Message, *, now: datetime) -> list[Message]:
    """What the head's turn takes along: fresh messages right behind it. What has had a try is tried by itself."""
    most = batch_size(head.session.config) if head.session is not None and head.started_at is None else 1
    if most == 1:
        return []
    behind = Message.objects.waiting_in(str(head.lane)).exclude(pk=head.pk).select_related("session__project", "sender")
    return list(takewhile(lambda message: _is_fresh(message, now=now), behind[: most - 1]))


def _is_fresh(message: Message, *, now: datetime) -> bool:
    expired = message.valid_until is not None and message.valid_until <= now
    return message.started_at is None and message.redeliveries == 0 and not expired


# --- acknowledge -----------------------------------------------------------------------------------------------
def acknowledge(done: Sequence[Acknowledgement], *, now: datetime) -> list[Next]:
    """Settle as delivered, many lanes in one transaction, and judge the next heads of those that go on.

    A lane that is no longer held so is passed over: its new holder finds the marker and acknowledges.
    """
    with durable():
        locked = lanes.lock({key for item in done for key in _lanes_to_settle(item)})
        mine = [item for item in done if lanes.is_held(item.hold, locked)]
        _deliver(mine, now=now)
        lanes.recover([item.hold.key for item in mine if locked[item.hold.key].failures])
        found = _leave_or_go_on(mine, locked=locked, now=now)
        crash_point("ack.before_commit")
    crash_point("ack.after_commit")
    return found


def _lanes_to_settle(item: Acknowledgement) -> set[str]:
    """A task that was stopped before it had a commit ends here, and its parent is told."""
    if item.outcome != Attempt.Outcome.STOPPED:
        return {item.hold.key}
    return {key for message in item.messages if message.is_task for key in _lanes_of(message, item.hold.key)} | {item.hold.key}


def _deliver(done: Sequence[Acknowledgement], *, now: datetime) -> None:
    ids = [pk for item in done for pk in item.message_pks]
    Message.objects.unsettled().filter(pk__in=ids).update(status=Message.Status.DELIVERED, settled_at=now, lane=None, last_error="")
    for item in done:
        if item.answer:
            Message.objects.filter(pk__in=item.message_pks).update(peer_answer=item.answer)
    for outcome in {item.outcome for item in done}:
        attempts.close([pk for item in done if item.outcome == outcome for pk in item.message_pks], outcome=outcome, now=now)
    for task in [message for item in done for message in item.messages if message.is_task and item.outcome == Attempt.Outcome.STOPPED]:
        end_task(task, results.stopped(), now=now)


def _leave_or_go_on(done: Sequence[Acknowledgement], *, locked: dict[str, Lane], now: datetime) -> list[Next]:
    going = [item.hold for item in done if item.go_on and _may_start(locked[item.hold.key], now=now)]
    leaving = [item.hold for item in done if item.hold not in going]
    _let_go(leaving, Message.objects.heads([hold.key for hold in leaving]) if leaving else {}, now=now)
    if not going:
        return []
    # Normally none: but a commit of this very transaction whose answer was lost has begun the next turns already.
    begun = Message.objects.filter(lane__in=[hold.key for hold in going], status=Message.Status.PROCESSING)
    if lost := list(begun.values_list("session_id", flat=True)):
        turns.close_lost(lost, now=now)
    runs.take_back([hold.key for hold in going], now=now)
    return _go_on(going, now=now)


def _may_start(lane: Lane, *, now: datetime) -> bool:
    return lane.paused_at is None and (lane.wanted_until is None or lane.wanted_until <= now)


def _let_go(holds: Sequence[Hold], heads: dict[str, Message], *, now: datetime) -> None:
    """Leave lanes, each due when its head or a cron run may start, behind those that are due already; else not before new mail."""
    due = {key: head.available_at for key, head in heads.items()}
    for key, at in runs.next_due([hold.key for hold in holds]).items():
        due[key] = min(due.get(key, at), at)
    lanes.release([hold for hold in holds if hold.key not in due], due_at=None)
    for hold in holds:
        if hold.key in due:
            lanes.release([hold], due_at=max(due[hold.key], now))


# --- release and fail ------------------------------------------------------------------------------------------
def release(work: Job, setback: Setback, *, now: datetime) -> bool:
    """Put the message back to be tried again at ``retry_at``, or fail it where that was its last try; leave the lane.

    A lane to another machine backs off as a whole: nothing of it is tried before. A turn that had been asked to stop is
    settled as stopped instead, and one whose marker is there as delivered.
    False: the lane had gone to another holder and nothing was changed.
    """
    if isinstance(work, CronWork):
        return _release_run(work, setback, now=now)
    with durable():
        locked = lanes.lock({key for message, _ in work.inputs for key in _lanes_of(message, work.hold.key)})
        if not lanes.is_held(work.hold, locked):
            return False
        if isinstance(work, Work):
            turns.fail(work.turn.pk, error=setback.error, now=now)
        for message, _ in work.inputs:
            _settle_or_put_back(work, message, setback, now=now)
        _let_go_after(work, setback, now=now)
        crash_point("release.before_commit")
    return True


def _let_go_after(work: Work | Parcel, setback: Setback, *, now: datetime) -> None:
    if isinstance(work, Work):
        _let_go([work.hold], Message.objects.heads([work.hold.key]), now=now)
        return
    waits = Message.objects.filter(lane=work.hold.key).exists()
    lanes.back_off(work.hold, due_at=setback.retry_at if waits else None, charged=setback.charged)


def _release_run(work: CronWork, setback: Setback, *, now: datetime) -> bool:
    """The same for a cron run, which is never charged as mail is: it has failed, or waits again."""
    with durable():
        if not lanes.is_held(work.hold, lanes.lock({work.hold.key})):
            return False
        turns.fail(work.turn.pk, error=setback.error, now=now)
        if turns.was_asked_to_stop(work.turn.pk):
            runs.stopped(work.run, error=setback.error, now=now)
        elif setback.charged or setback.died_alone:
            runs.fail(work.run, error=setback.error, suspect=setback.timed_out or setback.died_alone, now=now)
        else:
            deferred = setback.error if setback.deferred else ""
            runs.put_back(work.run, due_at=setback.retry_at, deferred=deferred, now=now)
        _let_go([work.hold], Message.objects.heads([work.hold.key]), now=now)
        crash_point("release.before_commit")
    return True


def _settle_or_put_back(work: Work | Parcel, message: Message, setback: Setback, *, now: datetime) -> None:
    settled = _outcome_after_all(work, message)
    if settled is not None:
        _deliver([Acknowledgement(work.hold, message, settled)], now=now)
        return
    _count(message, setback)
    reason = used_up(message, setback, now=now)
    if reason is not None:
        _settle_failed(message, reason=reason, error=setback.error, now=now)
    else:
        _put_back(message, setback, now=now)


def _outcome_after_all(work: Work | Parcel, message: Message) -> Attempt.Outcome | None:
    if isinstance(work, Parcel):
        return None
    if turns.was_asked_to_stop(work.turn.pk):
        return Attempt.Outcome.STOPPED
    return Attempt.Outcome.DELIVERED if turns.marked({(str(message.session_id), message.message_id)}) else None


def _count(message: Message, setback: Setback) -> None:
    """Count the try, the last one too."""
    suspect = int(setback.timed_out and message.losses == 0)
    message.maybe_delivered |= setback.maybe_delivered
    Message.objects.unsettled().filter(pk=message.pk).update(
        attempts=F("attempts") + int(setback.charged), deferrals=F("deferrals") + int(setback.deferred),
        losses=F("losses") + int(setback.died_alone) + suspect, maybe_delivered=message.maybe_delivered,
    )  # fmt: skip


def _put_back(message: Message, setback: Setback, *, now: datetime) -> None:
    """Put off until ``retry_at``; a task whose time ends before that is looked at when it ends.

    What goes to another machine may run at once: the lane there has the time.
    """
    may_run_at = now if message.session_id is None else setback.retry_at
    if message.is_timed and message.valid_until is not None:
        may_run_at = min(may_run_at, message.valid_until)
    Message.objects.unsettled().filter(pk=message.pk).update(
        status=Message.Status.PENDING, available_at=may_run_at, last_error=storable(setback.error)
    )
    attempts.close([message.pk], outcome=setback.outcome, error=setback.error, now=now)


def fail(judged: Judged, *, now: datetime, answered: bool = False) -> bool:
    """Settle as failed for good, with a notice to the sender, and leave the lane; a marker makes it delivered instead.

    ``answered``: it is the other machine's own word, so the lane to it is well.
    """
    reason = judged.judgement.reason or Message.Reason.REJECTED
    with durable():
        locked = lanes.lock(_lanes_of(judged.message, judged.hold.key))
        if not lanes.is_held(judged.hold, locked):
            return False
        if answered:
            lanes.recover([judged.hold.key])
        if _has_had_its_turn(judged.message):
            _deliver([Acknowledgement(judged.hold, judged.message)], now=now)
        else:
            _settle_failed(judged.message, reason=reason, error=judged.judgement.error, now=now)
        _let_go([judged.hold], Message.objects.heads([judged.hold.key]), now=now)
        crash_point("fail.before_commit")
    return True


def _has_had_its_turn(message: Message) -> bool:
    """Never of a message to another machine: that has none here."""
    return message.session_id is not None and bool(turns.marked({(message.session_id, message.message_id)}))


def _lanes_of(message: Message, own: str) -> set[str]:
    """Every lane that failing this message touches."""
    return {own, message.sender.lane_key} if message.sender is not None else {own}


def _settle_failed(message: Message, *, reason: Message.Reason, error: str, now: datetime, by_sender: bool = False) -> bool:
    same_try = Message.objects.unsettled().filter(pk=message.pk, redeliveries=message.redeliveries)
    if not same_try.update(status=Message.Status.FAILED, reason=reason, settled_at=now, lane=None, last_error=storable(error)):
        return False
    attempts.close([message.pk], outcome=Attempt.Outcome.FAILED, error=error, now=now)
    if message.sender is not None:
        message.sender.refresh_from_db(fields=["archived_at"])  # it may be days since the turn began; its lane is locked
    if message.is_task:
        end_task(message, results.failed(reason, error), now=now)
    if notices.wants_notice(message, withdrawn_by_sender=by_sender):
        _send_notice(message, reason=reason, error=error, now=now)
    return True


def _send_notice(message: Message, *, reason: Message.Reason, error: str, now: datetime) -> None:
    sender = message.sender
    if sender is None:
        return
    draft = Draft(
        project_id=message.project_id, target=sender, kind=Message.Kind.DELIVERY_FAILURE, sender_label="suzent",
        content=notices.notice_text(message, reason=reason, error=error), message_id=notices.notice_id(message),
        payload=notices.notice_payload(message, reason=reason), in_reply_to=message.message_id, ours=True,
    )  # fmt: skip
    _tell(draft, about=message, now=now)


def end_task(message: Message, ending: results.Ending, *, now: datetime) -> None:
    """End the task of this message, if it has not ended, and tell its parent. A step; the lanes of both are locked."""
    draft = results.end(message, ending, now=now)
    if draft is not None:
        _tell(draft, about=message, now=now)


def _tell(draft: Draft, *, about: Message, now: datetime) -> None:
    """Notices and results are never refused."""
    lanes.mark_due(draft.target.lane_key, now=now)
    _insert(draft, chain=Chain(about.hops + 1, about.root_id, about.message_id), now=now)


# --- what people do --------------------------------------------------------------------------------------------
def withdraw(message: Message, *, who: str, by_sender: bool, now: datetime, reason: str = "") -> Message:
    """Take back a message that has not started. Raises NotPending, which says how far it is; NotFound, if it was purged."""
    with durable():
        lanes.lock(_lanes_of(message, message.lane_key))
        withdraw_locked(message, who=who, by_sender=by_sender, now=now, reason=reason)
    return Message.objects.get(pk=message.pk)


def withdraw_locked(message: Message, *, who: str, by_sender: bool, now: datetime, reason: str = "") -> None:
    """``withdraw`` as a step of a transaction that has locked the lanes of target and sender."""
    error = f"withdrawn by {who}" + (f": {reason}" if reason else "")
    current = _locked(message)
    if current.status != Message.Status.PENDING:
        raise NotPending(f"The message is {current.status}; only a pending one can be withdrawn.", status=current.status)
    if current.maybe_delivered:
        raise MaybeDelivered
    _settle_failed(current, reason=Message.Reason.WITHDRAWN, error=error, now=now, by_sender=by_sender)
    Intervention.objects.create(message=current, verb=Intervention.Verb.WITHDRAW, who=who, why=reason, at=now)
    lanes.look_again([message.lane_key], now=now)
    lanes.wake_on_commit()


def redeliver(message: Message, *, who: str, now: datetime, reason: str = "") -> Message:
    """Try a failed message again under its own id, with fresh attempts and validity.

    One that had its turn after all is acknowledged by the next claim, which finds the marker.
    Raises NotFailed, TargetGone, TaskEnded; NotFound, if it was purged.
    """
    key, transport = message.lane_key, transports.of(message)
    with durable():
        lanes.lock({key})
        current = _locked(message)
        _refuse_redelivery(current)
        lifetime = transport.lifetime(current.valid_until - current.accepted_at if current.valid_until else None)
        Message.objects.failed().filter(pk=current.pk).update(
            status=Message.Status.PENDING, reason=None, settled_at=None, lane=key, available_at=now,
            max_attempts=F("attempts") + transport.attempts, losses=min(current.losses, 1), redeliveries=F("redeliveries") + 1,
            valid_until=now + lifetime if lifetime else None,
        )  # fmt: skip
        Intervention.objects.create(message=current, verb=Intervention.Verb.REDELIVER, who=who, why=reason, at=now)
        lanes.look_now([key], now=now)
        lanes.wake_on_commit()
    return Message.objects.get(pk=message.pk)


def _locked(message: Message) -> Message:
    """As it is now; until the transaction ends nobody purges it. Raises NotFound, if somebody has."""
    rows = Message.objects.select_related("sender", "session__project").select_for_update(of=("self",))
    current = rows.filter(pk=message.pk).first()
    if current is None:
        raise NotFound
    return current


def _refuse_redelivery(current: Message) -> None:
    if current.status != Message.Status.FAILED:
        raise NotFailed(f"The message is {current.status}; only a failed one can be retried.", status=current.status)
    if current.kind == Message.Kind.SUBAGENT_TASK:
        raise TaskEnded
    if transports.of(current).is_gone(current):
        raise TargetGone


# --- sweep -----------------------------------------------------------------------------------------------------
def sweep(*, now: datetime) -> Swept:
    """Fail what expired while it waited anywhere in a lane, and repair what should not happen."""
    repaired = repair_lanes(now=now)  # first, while ``now`` is now: later rows are not dated by a clock that ran ahead
    overdue = Message.objects.overdue(now).select_related("sender").order_by("valid_until")[:SWEEP_BATCH]
    return Swept(sum(_expire(message, now=now) for message in overdue), repaired)


def _expire(message: Message, *, now: datetime) -> bool:
    with durable():
        lanes.lock(_lanes_of(message, str(message.lane)))
        current = Message.objects.overdue(now).filter(pk=message.pk).select_related("sender").first()
        if current is None:
            return False
        judgement = given_up(current)
        _settle_failed(current, reason=judgement.reason or Message.Reason.EXPIRED, error=judgement.error, now=now)
        lanes.look_again([str(message.lane)], now=now)
    return True
