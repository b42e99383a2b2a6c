"""The outbox: replies are rows first, written in the commit that they answer for, and then sent by these rules.

* A part that the platform confirmed is never sent again.
* A try that may have arrived (a time-out, an answer of 5xx, a sender that died in the middle) is made once more, and
  that repeat says so. If it too stays without an answer the reply ends as ``uncertain``: a person decides.
* A try that certainly did not arrive (no connection) is made again, for a day.
* 429 waits as long as the platform says. A refusal is tried five times, then the reply ends as ``failed``.
* Whoever is no longer on the list gets nothing more: ``withheld``.

The only writer of SocialReply.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime, timedelta
from typing import Any

from sessions_app.models import Session, SocialChannel, SocialReply
from sessions_app.social.events import IncomingEvent
from sessions_app.text import cut, storable
from suzent_site.transactions import durable

REFUSALS = 5  # of one part, then it has failed
TRIED_FOR = timedelta(days=1)
CLAIM_LASTS = timedelta(seconds=20)  # longer than any call to a platform takes, see drivers.base.TIMEOUTS
LONGEST_PAUSE = timedelta(hours=1)
LONGEST_THROTTLE = timedelta(days=1)
ERROR_LIMIT = 2_000  # characters


def route_of(event: IncomingEvent) -> dict[str, Any]:
    """What a session keeps of where its answers go."""
    return {"channel": event.platform, "sender_id": event.sender_id, "target_id": event.target_id, "route": dict(event.reply_route)}


# --- writing ---------------------------------------------------------------------------------------------------
def answer(session: Session, event: IncomingEvent, text: str, *, now: datetime) -> None:
    """Reply to an event, and keep its route for what the session says later. A step of its turn's commit."""
    route = route_of(event)
    Session.objects.filter(pk=session.pk).update(reply_route=route)
    _write(route, text, session=session, now=now)


def answer_by_stored_route(session: Session, text: str, *, now: datetime) -> None:
    """What a social session says in a turn that a message woke. A step of that turn's commit."""
    route = Session.objects.values_list("reply_route", flat=True).get(pk=session.pk)
    if route:
        _write(route, text, session=session, now=now)


def write_to_stranger(channel: SocialChannel, event: IncomingEvent, text: str, *, now: datetime) -> None:
    """A step."""
    _write(route_of(event), text, session=None, kind=SocialReply.Kind.PAIRING, now=now)


def _write(
    route: dict[str, Any], text: str, *, session: Session | None, now: datetime, kind: SocialReply.Kind = SocialReply.Kind.REPLY
) -> None:
    """Nothing is written for a blank text, nor where the channel has nowhere to send to."""
    channel = SocialChannel.objects.filter(pk=route["channel"]).first()
    if channel is None or not text.strip() or (channel.driver == SocialChannel.Driver.WEBHOOK and not channel.url):
        return
    SocialReply.objects.create(
        channel=channel, session=session, kind=kind, sender_id=route["sender_id"], route=route, text=storable(text), next_at=now,
        created_at=now,
    )  # fmt: skip


# --- sending ---------------------------------------------------------------------------------------------------
def claim(owner: str, *, now: datetime) -> SocialReply | None:
    """The reply that has waited longest, for this sender alone; None: nothing is to be sent.

    One that a sender left in the middle comes with ``repeated`` set, or ends here as uncertain.
    """
    if not SocialReply.objects.due(now).exists():
        return None
    with durable():
        reply = SocialReply.objects.due(now).order_by("next_at", "pk").select_for_update(skip_locked=True, of=("self",)).first()
        if reply is None:
            return None
        if reply.status == SocialReply.Status.SENDING and not _mark_as_repeat(reply, "its sender died in the middle", now=now):
            return None
        _rows(reply).update(status=SocialReply.Status.SENDING, claimed_by=owner, claimed_until=now + CLAIM_LASTS)
    return SocialReply.objects.select_related("channel").get(pk=reply.pk)


def confirm(reply: SocialReply, *, more: bool, now: datetime) -> None:
    """The platform has the part. ``more``: another one follows, at once."""
    if more:
        _settle_part(reply, status=SocialReply.Status.PENDING, next_at=now)
    else:
        text = "" if reply.kind == SocialReply.Kind.PAIRING else reply.text  # a code is kept nowhere
        _settle_part(reply, status=SocialReply.Status.SENT, settled_at=now, text=text)


def put_back(reply: SocialReply, error: str, *, now: datetime, after: timedelta | None = None) -> None:
    """It certainly did not arrive: again ``after`` that time, or with growing pauses, for a day."""
    if now - reply.created_at > TRIED_FOR:
        end(reply, SocialReply.Status.FAILED, error, now=now)
        return
    age = (now - reply.created_at).total_seconds()
    pause = min(after, LONGEST_THROTTLE) if after is not None else _pause(int(age // 10))
    _update(reply, status=SocialReply.Status.PENDING, next_at=now + pause, last_error=_kept(error))


def put_back_refused(reply: SocialReply, error: str, *, now: datetime) -> None:
    """The platform said no: again with growing pauses, five times in all."""
    if reply.tries + 1 >= REFUSALS:
        end(reply, SocialReply.Status.FAILED, error, now=now)
        return
    _update(
        reply, status=SocialReply.Status.PENDING, next_at=now + _pause(reply.tries), tries=reply.tries + 1, last_error=_kept(error)
    )


def put_back_unsure(reply: SocialReply, error: str, *, now: datetime) -> None:
    """It may have arrived: once more, marked; after that a person decides."""
    with durable():
        current = SocialReply.objects.select_for_update().filter(pk=reply.pk, claimed_by=reply.claimed_by).first()
        if current is not None and current.status == SocialReply.Status.SENDING:
            _mark_as_repeat(current, error, now=now)


def end(reply: SocialReply, status: SocialReply.Status, error: str, *, now: datetime) -> None:
    """Settle it for good, unsent or not known to be sent."""
    _update(reply, status=status, settled_at=now, last_error=_kept(error))


def send_again(reply: SocialReply, *, now: datetime) -> bool:
    """What an operator does about one that was not sent: what was confirmed stays sent. False: it is open, or was sent."""
    with durable():
        over = SocialReply.objects.filter(pk=reply.pk).exclude(status__in=[*SocialReply.OPEN, SocialReply.Status.SENT])
        return over.exclude(text="").update(
            status=SocialReply.Status.PENDING, settled_at=None, next_at=now, created_at=now, tries=0
        ) == 1


def forget(reply_ids: Collection[int], *, settled_before: datetime) -> int:
    """Delete replies that were settled so long ago; how many. A step."""
    _, rows = SocialReply.objects.settled_before(settled_before).filter(pk__in=reply_ids).delete()
    return rows.get(SocialReply._meta.label, 0)


def _mark_as_repeat(reply: SocialReply, error: str, *, now: datetime) -> bool:
    """True: it may be tried once more. A step, the row locked."""
    if reply.repeated:
        _rows(reply).update(
            status=SocialReply.Status.UNCERTAIN, claimed_by="", claimed_until=None, settled_at=now, last_error=_kept(error)
        )
        return False
    _rows(reply).update(
        status=SocialReply.Status.PENDING, claimed_by="", claimed_until=None, repeated=True, next_at=now + _pause(0), last_error=_kept(error)
    )
    return True


def _settle_part(reply: SocialReply, **columns: Any) -> None:
    _update(reply, parts_sent=reply.parts_sent + 1, repeated=False, tries=0, last_error="", **columns)


def _update(reply: SocialReply, **columns: Any) -> None:
    """Write how the try ended, if this sender still has the reply."""
    mine = SocialReply.objects.filter(pk=reply.pk, status=SocialReply.Status.SENDING, claimed_by=reply.claimed_by)
    with durable():
        mine.update(claimed_by="", claimed_until=None, **columns)


def _rows(reply: SocialReply) -> Any:
    return SocialReply.objects.filter(pk=reply.pk)


def _pause(earlier: int) -> timedelta:
    return min(timedelta(seconds=2.0 * 2 ** min(earlier, 20)), LONGEST_PAUSE)


def _kept(error: str) -> str:
    return cut(storable(error), ERROR_LIMIT)
