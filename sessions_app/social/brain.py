"""Social Brain: from an event to the turn that answers it. One step an event; it holds no state of its own.

Judged in this order: the channel is on; it is not ourselves or a bot; the sender is on the list (channel and list are
asked again in the transaction that takes the lane, so a change also holds for what is queued); there is something to answer; it has had
no turn before. Then the turn runs, and its commit writes the entries, the marker of the event and the reply at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog
from django.conf import settings
from django.db import IntegrityError, connection

from sessions_app import actions
from sessions_app.actions import IdTaken, SessionGone
from sessions_app.clock import database_now
from sessions_app.direct import AlreadyDone, DirectTurns, Ended, LaneBusy, Order, Thought
from sessions_app.models import DeliveryMarker, Session, SocialChannel, Turn
from sessions_app.runtimes.base import TurnInput
from sessions_app.social import attachments, outbox, refusals
from sessions_app.social.drivers.base import Driver
from sessions_app.social.drivers.registry import driver_of
from sessions_app.social.drivers.telegram import own_id
from sessions_app.social.events import IncomingEvent
from sessions_app.social.identities import Standing, offer_pairing, standing_of
from sessions_app.text import cut, storable
from sessions_app.transcripts import PROVENANCE
from sessions_app.turns import Mark, marked
from suzent_site.errors import Conflict, Invalid, Refused, SuzentError
from suzent_site.transactions import durable

TRIES = 3  # of a turn that raises; then the person is told
PAUSES = (2.0, 10.0)  # seconds between them
LONGEST_PAUSE = 60.0  # seconds that an unavailable runtime may ask for
TYPING_EVERY = 4.0  # seconds; Telegram shows it for five
SORRY = "Sorry, that did not work. Please try again later."

log = structlog.get_logger(__name__)


class EventRefused(Refused):
    """An event that is not to be answered."""

    def __init__(self, reason: str) -> None:
        """``reason``: the word that is counted."""
        self.reason = reason
        super().__init__(reason)


class Brain:
    def __init__(self, direct: DirectTurns, *, closing: threading.Event) -> None:
        self._direct = direct
        self._closing = closing

    def attend(self, event: IncomingEvent) -> bool:
        """Answer the event, or refuse and count it. False: it is not done with and may be offered again."""
        try:
            return self._answer(event, _admitted(event))
        except AlreadyDone:
            log.info("social_event_repeated", channel=event.platform)
            return True
        except EventRefused as refusal:
            refusals.count(event.platform, refusal.reason, now=database_now())
            return True
        except SessionGone:
            refusals.count(event.platform, "archived", now=database_now())
            return True
        except LaneBusy:
            refusals.count(event.platform, "busy", now=database_now())
            return False
        except (Invalid, Conflict) as error:  # the channel's runtime or project does not fit any more
            log.warning("social_channel_unfit", channel=event.platform, error=error.detail)
            refusals.count(event.platform, "misconfigured", now=database_now())
            return True

    def _answer(self, event: IncomingEvent, channel: SocialChannel) -> bool:
        session = session_of(event, channel)
        if marked({(session.pk, event.key)}, source=DeliveryMarker.Source.EVENT):
            raise AlreadyDone
        driver = driver_of(channel)
        kept = attachments.keep(driver, channel, event.attachments)
        done = False
        try:
            done = self._tries(event, session, driver, channel, kept)
        finally:
            if not done:
                attachments.discard(kept)
        return done

    def _tries(
        self, event: IncomingEvent, session: Session, driver: Driver, channel: SocialChannel, kept: list[dict[str, Any]]
    ) -> bool:
        """Until a turn of it is kept; its last try is, even as a failure."""
        for attempt in range(1, TRIES + 1):
            turn = self._direct.begin(_order(event, session, kept, attempt=attempt), wait=settings.SUZENT_TURN_TIMEOUT)
            with _typing(driver, channel, event):
                ended = turn.finish()
            if ended.state != Turn.State.FAILED or attempt == TRIES or self._closing.wait(_pause(ended, attempt)):
                break
        if ended.state == Turn.State.FAILED:
            return not self._closing.is_set()  # given up at the end of the process, it has had no turn
        return ended.state is not None


def _admitted(event: IncomingEvent) -> SocialChannel:
    """The event's channel, if the event may have a turn there. Raises EventRefused."""
    channel = SocialChannel.objects.select_related("project").filter(pk=event.platform, active=True).first()
    if channel is None:
        raise EventRefused("channel_off")
    _refuse_ourselves(event, channel)
    _refuse_unlisted(event, channel)
    if not event.text.strip() and not event.attachments:
        raise EventRefused("empty")
    return channel


def _refuse_ourselves(event: IncomingEvent, channel: SocialChannel) -> None:
    ours = own_id(channel) if channel.driver == SocialChannel.Driver.TELEGRAM else channel.own_id
    if event.sender_id in {ours, channel.own_id} - {""}:
        raise EventRefused("own")
    if event.is_bot:
        raise EventRefused("bot")


def _refuse_unlisted(event: IncomingEvent, channel: SocialChannel) -> None:
    standing = standing_of(event.platform, event.sender_id)
    if standing == Standing.DENIED:
        raise EventRefused("denied")
    if standing == Standing.STRANGER and channel.pairing and event.is_direct:
        raise EventRefused(offer_pairing(channel, event, now=database_now()))
    if standing == Standing.STRANGER:
        raise EventRefused("not_listed")


def session_of(event: IncomingEvent, channel: SocialChannel) -> Session:
    """The session of the event's chat, made when it is first needed. Raises SessionGone, Invalid, Conflict."""
    found = Session.objects.filter(pk=event.session_id).first()
    if found is None:
        try:
            with durable():
                actions.insert_session_of_ours(
                    channel.project, event.session_id, now=database_now(), kind=Session.Kind.SOCIAL, runtime=channel.runtime,
                    title=cut(storable(f"{event.sender_name or event.sender_id} on {channel.name}"), actions.TITLE_LIMIT),
                )  # fmt: skip
        except (IntegrityError, IdTaken):  # another process made it in the same instant
            log.info("social_session_was_made", agent_id=event.session_id)
        found = Session.objects.get(pk=event.session_id)
    if found.archived_at is not None:
        raise SessionGone
    return found


def _order(event: IncomingEvent, session: Session, kept: list[dict[str, Any]], *, attempt: int) -> Order:
    def still_admitted() -> None:
        if not SocialChannel.objects.filter(pk=event.platform, active=True).exists():
            raise EventRefused("channel_off")
        if standing_of(event.platform, event.sender_id) != Standing.ADMITTED:
            raise EventRefused("removed")

    def reply(turn: Turn, thought: Thought) -> None:
        outbox.answer(session, event, thought.reply.text if thought.reply else SORRY, now=database_now())

    return Order(
        session, Turn.Origin.SOCIAL,
        (TurnInput(event.key, "user_message", event.text, attempt, _header(event, kept)),),
        handled=f"event {session.pk} {event.key}",
        marks=[Mark(event.key, event.digest, source=DeliveryMarker.Source.EVENT)],
        check=still_admitted, also=reply, keep_failure=attempt == TRIES,
    )  # fmt: skip


def _header(event: IncomingEvent, kept: list[dict[str, Any]]) -> dict[str, Any]:
    """Where the entry comes from, as messages have it too. Names are what the sender says of themselves."""
    return {
        "type": PROVENANCE, "message_id": event.key, "kind": "user_message", "sender": None,
        "sender_label": f"{event.platform} {event.sender_id}", "sender_name": event.sender_name, "in_reply_to": None,
        "platform": event.platform, "event_id": event.event_id, "target_id": event.target_id,
        "received_at": event.received_at.isoformat(), "attachments": kept,
    }  # fmt: skip


def _pause(ended: Ended, attempt: int) -> float:
    """Seconds before the next try of a turn that came to nothing."""
    asked = ended.thought.retry_after
    return PAUSES[attempt - 1] if asked is None else min(max(asked, 0.0), LONGEST_PAUSE)


@contextmanager
def _typing(driver: Driver, channel: SocialChannel, event: IncomingEvent) -> Iterator[None]:
    """Show the person that somebody is at it, as long as the turn takes."""
    over = threading.Event()
    thread = threading.Thread(target=_type, args=(driver, channel, outbox.route_of(event), over), name="typing", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()


def _type(driver: Driver, channel: SocialChannel, route: dict[str, Any], over: threading.Event) -> None:
    while not over.is_set():
        try:
            driver.typing(channel, route)
        except SuzentError as error:  # it is only a courtesy
            log.info("typing_not_shown", channel=channel.pk, error=error.code)
            break
        over.wait(TYPING_EVERY)
    connection.close()
