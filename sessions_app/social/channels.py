"""Channels and their secrets: made and changed here, one transaction each."""

from __future__ import annotations

import os
import re
from datetime import datetime
from typing import Any, TypedDict, Unpack

from django.db import IntegrityError

from sessions_app.actions import IdTaken, allowed_runtime
from sessions_app.models import Project, SocialChannel
from sessions_app.social.models import CHANNEL_NAME, NEUTRAL
from sessions_app.text import cut, refuse_unstorable, storable
from suzent_site.addresses import Reach, check_url
from suzent_site.errors import Invalid
from suzent_site.sealed import seal, unseal
from suzent_site.transactions import durable

VARIABLE = r"SUZENT_SOCIAL_[A-Z0-9_]{1,40}"  # a channel sends its secret away, so it must not name just any variable
SECRET_LIMIT = 200  # characters
LEAST_SECRET = 16  # characters; a shorter one can be guessed


class AboutChannel(TypedDict, total=False):
    """What may be said of a channel."""

    runtime: str
    secret: str
    secret_variable: str
    url: str
    own_id: str
    pairing: bool
    pairing_text: str
    active: bool


def create_channel(name: str, *, driver: str, project: Project, now: datetime, **about: Unpack[AboutChannel]) -> SocialChannel:
    """Raises Invalid, IdTaken."""
    if not re.fullmatch(CHANNEL_NAME, name):
        raise Invalid("name", "must be 1 to 32 small letters, digits or _, and begin with a letter or digit")
    if driver not in SocialChannel.Driver.values:
        raise Invalid("driver", f"must be one of {', '.join(SocialChannel.Driver.values)}")
    channel = SocialChannel(name=name, driver=driver, project=project, pairing_text=NEUTRAL, created_at=now)
    for field, value in _columns(about, project=project).items():
        setattr(channel, field, value)
    _refuse_codes_for_nobody(channel.driver, pairing=channel.pairing, url=channel.url)
    try:
        with durable():
            channel.save(force_insert=True)
    except IntegrityError as error:
        raise IdTaken from error
    return channel


def change_channel(channel: SocialChannel, **about: Unpack[AboutChannel]) -> None:
    """What is not named stays as it is, the secret too. Raises Invalid."""
    columns = _columns(about, project=channel.project)
    if about.keys() & {"pairing", "url"}:
        _refuse_codes_for_nobody(channel.driver, pairing=about.get("pairing", channel.pairing), url=about.get("url", channel.url))
    with durable():
        SocialChannel.objects.filter(pk=channel.pk).update(**columns)


def any_active() -> bool:
    """Whether ``manage.py social`` has anything to do."""
    return SocialChannel.objects.filter(active=True).exists()


def secret_of(channel: SocialChannel) -> str:
    """The channel's secret; empty where there is none, or a blank one: then nothing may pass. Raises CannotUnseal."""
    if channel.secret_variable:
        return os.environ.get(channel.secret_variable, "").strip()
    return unseal(channel.secret_sealed).strip() if channel.secret_sealed else ""


def note_trouble(channel: SocialChannel, trouble: str) -> None:
    """Show the operator what is wrong with a channel; an empty text says that it is well again."""
    trouble = cut(storable(trouble), 500)
    if channel.trouble != trouble:
        with durable():
            SocialChannel.objects.filter(pk=channel.pk).update(trouble=trouble)
        channel.trouble = trouble


def _columns(about: AboutChannel, *, project: Project) -> dict[str, Any]:
    columns: dict[str, Any] = {name: value for name, value in about.items() if name != "secret"}
    for name, value in columns.items():
        refuse_unstorable(value, field=name)
    if about.get("runtime"):
        allowed_runtime(project, about["runtime"])
    if about.get("url"):
        check_url(about["url"], reach=Reach.OPERATOR)
    if about.get("secret_variable") and not re.fullmatch(VARIABLE, about["secret_variable"]):
        raise Invalid("secret_variable", "must begin with SUZENT_SOCIAL_ and go on with capital letters, digits or _")
    if about.get("secret"):
        columns["secret_sealed"] = seal(_sound_secret(about["secret"]))
    return columns


def _refuse_codes_for_nobody(driver: str, *, pairing: bool, url: str) -> None:
    """A code is a reply: without a URL to post it to no stranger would ever see theirs."""
    if pairing and not url and driver == SocialChannel.Driver.WEBHOOK:
        raise Invalid("pairing", "needs a URL: codes for strangers are posted there")


def _sound_secret(secret: str) -> str:
    if not re.fullmatch(r"[\x21-\x7e]+", secret) or not LEAST_SECRET <= len(secret) <= SECRET_LIMIT:
        raise Invalid("secret", f"must be {LEAST_SECRET} to {SECRET_LIMIT} printable ASCII characters without blanks")
    return secret
