"""Who may write on a channel, asked of the database each time: what an operator changes holds at once, everywhere."""

from __future__ import annotations

import hmac
import secrets
from datetime import datetime, timedelta
from enum import StrEnum

from django.utils.crypto import salted_hmac

from sessions_app.models import PairingRequest, SocialChannel, SocialIdentity
from sessions_app.social import outbox
from sessions_app.social.events import ID_LIMIT, IncomingEvent
from sessions_app.text import cut, refuse_unstorable, storable
from suzent_site.errors import Conflict, Invalid, NotFound, SuzentError
from suzent_site.transactions import durable

CODE_LETTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789"  # none that could be taken for another
CODE_LENGTH = 6
CODE_LASTS = timedelta(minutes=10)
WRONG_TRIES = 5
PENDING_AT_MOST = 20  # open requests of a channel: more strangers at once get no answer


class Standing(StrEnum):
    ADMITTED = "admitted"
    DENIED = "denied"
    STRANGER = "stranger"


class WrongCode(Invalid):
    """That is not the code that this person was given."""

    code = "wrong_code"

    def __init__(self, left: int) -> None:
        super().__init__("code", f"is not the one that this person was given; {left} tries are left")


class CodeOver(Conflict):
    """This code is over: it is older than ten minutes, or was mistaken five times. Have the person write again later."""

    code = "code_over"


def standing_of(platform: str, sender_id: str) -> Standing:
    """The sender's id counts, letter by letter, on this platform only."""
    found = SocialIdentity.objects.filter(channel=platform, sender_id=sender_id)
    if found.admitted().exists():
        return Standing.ADMITTED
    denied = found.filter(verdict=SocialIdentity.Verdict.DENIED).exists()
    return Standing.DENIED if denied else Standing.STRANGER


def judge(
    channel: SocialChannel, sender_id: str, *, verdict: SocialIdentity.Verdict, now: datetime, label: str = ""
) -> SocialIdentity:
    """Allow or deny somebody by the list. Raises Invalid."""
    if not 1 <= len(sender_id) <= ID_LIMIT or sender_id.strip() != sender_id or not sender_id.isprintable():
        raise Invalid("sender_id", f"must be 1 to {ID_LIMIT} printable characters without blanks around them")
    refuse_unstorable(label, field="label")
    with durable():
        identity, _ = SocialIdentity.objects.update_or_create(
            channel=channel, sender_id=sender_id,
            defaults={"verdict": verdict, "source": SocialIdentity.Source.LIST, "label": label[:200]},
            create_defaults={
                "verdict": verdict, "source": SocialIdentity.Source.LIST, "label": label[:200], "created_at": now
            },
        )  # fmt: skip
        PairingRequest.objects.filter(channel=channel, sender_id=sender_id).delete()
    return identity


def remove(identity: SocialIdentity) -> bool:
    """Take somebody off the list: a stranger again, from now on. False: they were not on it."""
    with durable():
        return bool(SocialIdentity.objects.filter(pk=identity.pk).delete()[0])


class Offered(StrEnum):
    """What became of a stranger's message."""

    CODE_SENT = "pairing_offered"
    ASKED_BEFORE = "pairing_open"
    FULL = "pairing_full"


def offer_pairing(channel: SocialChannel, event: IncomingEvent, *, now: datetime) -> Offered:
    """Give a stranger a code, at most one within ten minutes, whatever they write."""
    with durable():
        locked = SocialChannel.objects.select_for_update().get(pk=channel.pk)
        PairingRequest.objects.filter(channel=channel, expires_at__lte=now).delete()
        waiting = PairingRequest.objects.filter(channel=channel)
        if waiting.filter(sender_id=event.sender_id).exists():
            return Offered.ASKED_BEFORE
        if waiting.count() >= PENDING_AT_MOST:
            return Offered.FULL
        code = "".join(secrets.choice(CODE_LETTERS) for _ in range(CODE_LENGTH))
        PairingRequest.objects.create(
            channel=channel, sender_id=event.sender_id, sender_name=cut(storable(event.sender_name), 200),
            digest=_digest(channel, event.sender_id, code), created_at=now, expires_at=now + CODE_LASTS,
        )  # fmt: skip
        outbox.write_to_stranger(locked, event, f"{locked.pairing_text} {code}", now=now)
    return Offered.CODE_SENT


def approve(request: PairingRequest, code: str, *, now: datetime) -> None:
    """Let in who was given this code. Raises WrongCode, CodeOver, NotFound."""
    if (refusal := _approve(request, code, now=now)) is not None:
        raise refusal


def _approve(request: PairingRequest, code: str, *, now: datetime) -> SuzentError | None:
    """A wrong try is committed, so its refusal is an answer and no exception."""
    with durable():
        current = PairingRequest.objects.select_for_update().filter(pk=request.pk).first()
        if current is None:
            return NotFound()
        if current.expires_at <= now or current.wrong_tries >= WRONG_TRIES:
            return CodeOver()
        if not hmac.compare_digest(current.digest, _digest(current.channel, current.sender_id, code.strip().upper())):
            PairingRequest.objects.filter(pk=current.pk).update(wrong_tries=current.wrong_tries + 1)
            return WrongCode(WRONG_TRIES - current.wrong_tries - 1)
        _let_in(current, now=now)
    return None


def _let_in(request: PairingRequest, *, now: datetime) -> None:
    SocialIdentity.objects.get_or_create(
        channel=request.channel, sender_id=request.sender_id,
        defaults={
            "verdict": SocialIdentity.Verdict.ALLOWED, "source": SocialIdentity.Source.PAIRING, "label": request.sender_name,
            "created_at": now,
        },
    )  # fmt: skip
    request.delete()


def _digest(channel: SocialChannel, sender_id: str, code: str) -> str:
    return salted_hmac("sessions_app.social.pairing", f"{channel.pk}\n{sender_id}\n{code}", algorithm="sha256").hexdigest()
