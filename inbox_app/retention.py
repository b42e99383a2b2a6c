"""What goes when it is old: settled messages with their attempts and turns, later their markers and dedupe keys.

One kind after the other, in batches, each a short transaction of its own and so small that no claim waits for it. A
purge that is killed or stopped has done its whole batches, and the next one goes on behind them. In this order:

* a message goes a while after it settled, with its attempts, and leaves its dedupe key in the same transaction;
* a turn goes when no attempt is left that it was run for;
* a marker goes when the row of its message is gone: who may be delivered again is never without it;
* a dedupe key goes after its marker, and not before the message whose turn sent it: that turn may run again;
* a sub-agent's task goes as late as a dedupe key: a turn that is run again is answered with it.

So whoever has a marker has a message or a key, and ``accept`` needs to look at these two only.
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar, cast

from django.conf import settings
from django.contrib.sessions.models import Session as ConsoleSession
from django.db.models import Exists, Model, OuterRef, QuerySet
from django_q.conf import Conf
from django_q.models import OrmQ, Task

from inbox_app.drain import draining
from inbox_app.models import Attempt, DedupeKey, Intervention, Message, SubagentTask
from inbox_app.querysets import MessageQuerySet, SubagentTaskQuerySet
from sessions_app import turns
from sessions_app.cron import runs
from sessions_app.cron.models import CronRun
from sessions_app.cron.querysets import CronRunQuerySet
from sessions_app.models import DeliveryMarker, SocialReply, Turn
from sessions_app.querysets import MarkerQuerySet, TurnQuerySet
from sessions_app.social import outbox
from sessions_app.social.querysets import SocialReplyQuerySet
from suzent_site.faults import crash_point
from suzent_site.transactions import durable

BATCH_SECONDS = 0.02  # for which one transaction should keep others waiting; the batches become larger or smaller accordingly
SMALLEST, FIRST, LARGEST = 20, 50, 500  # rows in a batch
SHARE = 1 / 3  # of the time in which a purge works; the rest it leaves to others
TAKEN_FOR = timedelta(hours=1)  # then a task's place in the queue goes; one that still runs does not need it
PORTION = 5.0  # seconds that the minutely sweep may spend here

Row = TypeVar("Row", bound=Model)
Gone = Counter[str]
Rest = Callable[[float], bool]


@dataclass(frozen=True)
class Before:
    """What is older than this goes. ``ids``: what remembers that a message_id was used."""

    rows: datetime
    ids: datetime
    now: datetime

    @classmethod
    def at(cls, now: datetime) -> Before:
        rows, ids = (timedelta(days=days) for days in (settings.SUZENT_RETENTION_DAYS, settings.SUZENT_DEDUPE_DAYS))
        return cls(rows=now - rows, ids=now - ids, now=now)


@dataclass(frozen=True)
class Staying:
    """The rows that others wait for: as long as they are there, these stay as well."""

    messages: MessageQuerySet
    attempts: QuerySet[Attempt]
    markers: MarkerQuerySet

    @classmethod
    def at_present(cls) -> Staying:
        return cls(Message.objects.all(), Attempt.objects.all(), DeliveryMarker.objects.all())

    @classmethod
    def after(cls, before: Before) -> Staying:
        """What a whole purge will leave."""
        messages = Message.objects.exclude(settled_at__lt=before.rows)
        attempts = Attempt.objects.exclude(message__settled_at__lt=before.rows)
        going = _old_markers(before, cls(messages, attempts, DeliveryMarker.objects.none()))
        return cls(messages, attempts, DeliveryMarker.objects.exclude(pk__in=going.values("pk")))


@dataclass(frozen=True)
class Kind:
    """Rows that go in batches: which ones, the indexed column of their age, and the step that removes some of them."""

    name: str
    old: Callable[[Before, Staying], QuerySet[Any]]
    age: str
    remove: Callable[[Sequence[Any], Before], Gone]


@dataclass(frozen=True)
class Purged:
    """``complete``: nothing that is old is left."""

    gone: Mapping[str, int]
    complete: bool


@dataclass
class Pace:
    """How many rows the next batch has, so that it takes BATCH_SECONDS."""

    size: int = FIRST

    def after(self, seconds: float) -> None:
        """A batch of this size has kept others waiting for so long."""
        factor = min(max(BATCH_SECONDS / seconds, 0.5), 2)
        self.size = min(max(int(self.size * factor), SMALLEST), LARGEST)


# --- Purging ---------------------------------------------------------------------------------------------------
def purge(
    *, now: datetime, rest: Rest, give_up_at: float = math.inf, tell: Callable[[Mapping[str, int]], None] | None = None
) -> Purged:
    """Remove what is old, until nothing is left, ``rest(seconds)`` says to stop or ``time.monotonic()`` passes ``give_up_at``.

    ``tell`` hears after each batch what has gone so far.
    """
    before, gone = Before.at(now), Gone(dict.fromkeys(NAMES, 0))
    for kind in KINDS:
        sweep = _Sweep(kind, before)
        while (went := sweep.next_batch()) is not None:
            gone.update(went)
            if tell is not None:
                tell(gone)
            if rest(sweep.pause) or time.monotonic() >= give_up_at:
                return Purged(gone, complete=False)
    return Purged(gone, complete=True)


def purge_a_portion(*, now: datetime) -> Purged:
    """As much as the minutely sweep may: its worker is the one that is left free for whatever else comes."""
    wait = threading.Event().wait
    return purge(now=now, rest=lambda seconds: wait(seconds) or draining(), give_up_at=time.monotonic() + PORTION)


def would_go(*, now: datetime) -> dict[str, int]:
    """What a whole purge would remove now."""
    before = Before.at(now)
    staying = Staying.after(before)
    going = Message.objects.settled_before(before.rows)
    counts = {kind.name: kind.old(before, staying).count() for kind in KINDS}
    counts["attempts"] = Attempt.objects.filter(message__in=going).count()
    counts["interventions"] = Intervention.objects.filter(message__in=going).count()
    counts["dedupe_keys"] += _forgettable(going, before, staying).count()  # left by messages that are as old as that
    return {name: counts[name] for name in NAMES}


@dataclass
class _Sweep:
    """One kind from its oldest row on."""

    kind: Kind
    before: Before
    pace: Pace = field(default_factory=Pace)
    pause: float = 0.0
    reached: Any = None  # the age of the last row seen: nobody need look again at the dead rows before it

    def next_batch(self) -> Gone | None:
        """What went; None when nothing is left, or what is left is somebody else's for the moment."""
        began, before = time.monotonic(), self.reached
        found = self._find()
        if not found:
            return None
        self.reached = found[-1][1]
        with durable():
            locked_at = time.monotonic()  # not before: on SQLite it is others that we have waited for until now
            went = self.kind.remove([pk for pk, _ in found], self.before)
            crash_point("purge.before_commit")
        self.pace.after(time.monotonic() - locked_at)
        crash_point("purge.after_batch")
        self.pause = (time.monotonic() - began) * (1 / SHARE - 1)
        return went if any(went.values()) or self.reached != before else None

    def _find(self) -> list[tuple[Any, Any]]:
        old = self.kind.old(self.before, Staying.at_present()).order_by(self.kind.age)
        if self.reached is not None:
            old = old.filter(**{f"{self.kind.age}__gte": self.reached})
        return list(old.values_list("pk", self.kind.age)[: self.pace.size])


# --- Which rows are old ----------------------------------------------------------------------------------------
def _old_messages(before: Before, staying: Staying) -> MessageQuerySet:
    return Message.objects.settled_before(before.rows)


def _old_turns(before: Before, staying: Staying) -> TurnQuerySet:
    return Turn.objects.finished_before(before.rows).filter(~Exists(staying.attempts.filter(turn=OuterRef("pk"))))


def _old_markers(before: Before, staying: Staying) -> MarkerQuerySet:
    theirs = staying.messages.filter(
        project=OuterRef("session__project"), message_id=OuterRef("key"), session=OuterRef("session")
    )
    return DeliveryMarker.objects.left_before(before.ids).filter(~Exists(theirs))


def _old_keys(before: Before, staying: Staying) -> QuerySet[DedupeKey]:
    return _forgettable(DedupeKey.objects.all(), before, staying)


def _forgettable(rows: QuerySet[Row], before: Before, staying: Staying) -> QuerySet[Row]:
    """Of dedupe keys, or of messages that would leave one: those whose id may be forgotten."""
    marker = staying.markers.filter(session=OuterRef("target"), source=DeliveryMarker.Source.MESSAGE, key=OuterRef("message_id"))
    cause = staying.messages.filter(project=OuterRef("project"), message_id=OuterRef("caused_by"))
    return rows.filter(~Exists(marker), ~Exists(cause), settled_at__lt=before.ids)


def _old_tasks(before: Before, staying: Staying) -> SubagentTaskQuerySet:
    return SubagentTask.objects.ended_before(before.ids)


def _old_cron_runs(before: Before, staying: Staying) -> CronRunQuerySet:
    return CronRun.objects.finished_before(before.rows)


def _old_replies(before: Before, staying: Staying) -> SocialReplyQuerySet:
    return SocialReply.objects.settled_before(before.rows)


def _old_task_results(before: Before, staying: Staying) -> Any:  # django-q2 has no types
    return Task.objects.filter(stopped__lt=before.rows)


def _taken_tasks(before: Before, staying: Staying) -> Any:
    """Places in the ORM broker's queue whose tasks were taken and never ended: their worker was killed.

    q2 would wait RETRY for each and then run a hint that is a week old. Until somebody takes it a place is locked till now.
    """
    return OrmQ.objects.filter(lock__gt=before.now, lock__lt=before.now + timedelta(seconds=Conf.RETRY) - TAKEN_FOR)


def _expired_console_sessions(before: Before, staying: Staying) -> QuerySet[ConsoleSession]:
    return ConsoleSession.objects.filter(expire_date__lt=before.now)


# --- Removing a batch of them ----------------------------------------------------------------------------------
def _remove_messages(ids: Sequence[int], before: Before) -> Gone:
    """Each leaves its key. What somebody redelivers at this moment stays: its row is locked, or no longer settled."""
    settled = Message.objects.settled_before(before.rows)
    going = list(settled.filter(pk__in=ids).select_for_update(skip_locked=True))
    if not going:
        return Gone()
    _leave([_key_of(message) for message in going])
    theirs = [message.pk for message in going]
    return Gone(
        attempts=_delete(Attempt.objects.filter(message__in=theirs)),
        interventions=_delete(Intervention.objects.filter(message__in=theirs)),
        messages=_delete(settled.filter(pk__in=theirs)),
    )


def _delete(rows: QuerySet[Any]) -> int:
    """By one statement. ``delete()`` would first read what it deletes, and then everything that could refer to it."""
    return rows._raw_delete(using=rows.db)


def _key_of(message: Message) -> DedupeKey:
    return DedupeKey(
        project_id=message.project_id, message_id=message.message_id, sender=message.sender_id or "", target=message.target,
        transport=message.transport, caused_by=message.caused_by, digest=message.digest, status=message.status,
        settled_at=cast("datetime", message.settled_at),
    )  # fmt: skip


def _leave(keys: Sequence[DedupeKey]) -> None:
    """A key that is there already would come from a restored backup: the row knows better."""
    DedupeKey.objects.bulk_create(
        keys, update_conflicts=True, unique_fields=["project", "message_id"],
        update_fields=["sender", "target", "transport", "caused_by", "digest", "status", "settled_at"],
    )  # fmt: skip


def _remove_turns(ids: Sequence[int], before: Before) -> Gone:
    return Gone(turns=turns.forget(ids, finished_before=before.rows))


def _remove_markers(ids: Sequence[int], before: Before) -> Gone:
    return Gone(markers=turns.forget_marks(ids))


def _remove_keys(ids: Sequence[int], before: Before) -> Gone:
    return Gone(dedupe_keys=_delete(DedupeKey.objects.settled_before(before.ids).filter(pk__in=ids)))


def _remove_tasks(ids: Sequence[int], before: Before) -> Gone:
    return Gone(subagent_tasks=_delete(SubagentTask.objects.ended_before(before.ids).filter(pk__in=ids)))


def _remove_cron_runs(ids: Sequence[int], before: Before) -> Gone:
    return Gone(cron_runs=runs.forget(ids, finished_before=before.rows))


def _remove_replies(ids: Sequence[int], before: Before) -> Gone:
    return Gone(social_replies=outbox.forget(ids, settled_before=before.rows))


def _remove_task_results(ids: Sequence[str], before: Before) -> Gone:
    return Gone(task_results=_delete(Task.objects.filter(pk__in=ids)))


def _remove_taken_tasks(ids: Sequence[int], before: Before) -> Gone:
    return Gone(taken_tasks=_delete(OrmQ.objects.filter(pk__in=ids)))


def _remove_console_sessions(ids: Sequence[str], before: Before) -> Gone:
    return Gone(console_sessions=_delete(ConsoleSession.objects.filter(pk__in=ids, expire_date__lt=before.now)))


KINDS = (
    Kind("messages", _old_messages, "settled_at", _remove_messages),
    Kind("turns", _old_turns, "finished_at", _remove_turns),
    Kind("markers", _old_markers, "created_at", _remove_markers),
    Kind("dedupe_keys", _old_keys, "settled_at", _remove_keys),
    Kind("subagent_tasks", _old_tasks, "ended_at", _remove_tasks),
    Kind("cron_runs", _old_cron_runs, "finished_at", _remove_cron_runs),
    Kind("social_replies", _old_replies, "settled_at", _remove_replies),
    Kind("task_results", _old_task_results, "stopped", _remove_task_results),
    Kind("taken_tasks", _taken_tasks, "lock", _remove_taken_tasks),
    Kind("console_sessions", _expired_console_sessions, "expire_date", _remove_console_sessions),
)
NAMES = ("messages", "attempts", "interventions", *(kind.name for kind in KINDS[1:]))
