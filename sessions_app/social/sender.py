"""Sending one part of one reply: the step that the senders of ``manage.py social`` repeat."""

from __future__ import annotations

import time
from datetime import timedelta

import structlog

from sessions_app.clock import database_now
from sessions_app.models import SocialReply
from sessions_app.social import outbox
from sessions_app.social.drivers.base import Driver, NotSent, Part, Rejected, Throttled, Unsure
from sessions_app.social.drivers.registry import driver_of
from sessions_app.social.identities import Standing, standing_of
from suzent_site.faults import crash_point
from suzent_site.sealed import CannotUnseal
from suzent_site.transactions import until_answered

REPEAT = "(sent again: it may have arrived before)\n"

log = structlog.get_logger(__name__)


def send_next(owner: str) -> bool:
    """Send the next part that is due. False: there is none."""
    reply = outbox.claim(owner, now=database_now())
    if reply is None:
        return False
    if reply.kind == SocialReply.Kind.REPLY and standing_of(reply.channel_id, reply.sender_id) != Standing.ADMITTED:
        outbox.end(reply, SocialReply.Status.WITHHELD, "the person is not on the list any more", now=database_now())
        return True
    _send(reply, driver_of(reply.channel))
    return True


def _send(reply: SocialReply, driver: Driver) -> None:
    parts = pieces(reply.text, most=driver.limit - len(REPEAT))
    number = reply.parts_sent
    text = REPEAT + parts[number] if reply.repeated else parts[number]
    try:
        driver.send(reply.channel, reply.route, Part(reply.pk, number, text, is_repeat=reply.repeated))
    except Throttled as wait:
        outbox.put_back(reply, wait.detail, now=database_now(), after=timedelta(seconds=wait.retry_after))
    except NotSent as error:
        outbox.put_back(reply, error.detail, now=database_now())
    except (Rejected, CannotUnseal) as error:
        log.warning("reply_refused", reply=reply.pk, channel=reply.channel_id, error=error.detail)
        outbox.put_back_refused(reply, error.detail, now=database_now())
    except Unsure as error:
        log.warning("reply_uncertain", reply=reply.pk, channel=reply.channel_id, error=error.detail)
        outbox.put_back_unsure(reply, error.detail, now=database_now())
    else:
        crash_point("social.after_send")
        _confirm(reply, more=number + 1 < len(parts))


def _confirm(reply: SocialReply, *, more: bool) -> None:
    """The database may be away just now: what was confirmed must not be sent again for that."""
    give_up_at = time.monotonic() + outbox.CLAIM_LASTS.total_seconds() / 4
    until_answered(lambda: outbox.confirm(reply, more=more, now=database_now()), give_up_at=give_up_at)


def pieces(text: str, *, most: int) -> list[str]:
    """``text`` in parts of at most ``most`` UTF-16 code units, cut behind a line break or blank where one is near.

    Blank parts are left out (platforms refuse them); joined, the others are the text but for those.
    """
    found = []
    while text:
        head = _head(text, most)
        found.append(head)
        text = text[len(head) :]
    return [piece for piece in found if piece.strip()] or [text]


def _head(text: str, most: int) -> str:
    head = text[:most]
    while len(head.encode("utf-16-le")) // 2 > most:
        head = head[: -max(1, (len(head.encode("utf-16-le")) // 2 - most) // 2)]
    if len(head) == len(text):
        return head
    end = max(head.rfind("\n", len(head) // 2), head.rfind(" ", len(head) * 3 // 4))
    return head[: end + 1] if end > 0 else head
