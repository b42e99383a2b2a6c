"""Channels, their people and what they write; a signed caller."""

import json
import time

from django.test import Client

from sessions_app.clock import database_now
from sessions_app.models import Project, SocialChannel, SocialIdentity
from sessions_app.social import channels, identities
from sessions_app.social.events import IncomingEvent
from sessions_app.social.signature import signed
from tests.bot_api import TOKEN
from tests.factories import ProjectFactory

SECRET = "a-secret-of-the-bridge-0123456789"  # made up


def a_channel(name="hook", *, driver="webhook", allowed=("42",), runtime="", **about):
    project = Project.objects.filter(slug="chat").first() or ProjectFactory(slug="chat", runtimes=["echo", "scripted"])
    secret = TOKEN if driver == "telegram" else SECRET
    made = channels.create_channel(
        name, driver=driver, project=project, now=database_now(), **{"secret": secret, "runtime": runtime, **about}
    )
    for sender_id in allowed:
        allow(made, sender_id)
    return made


def allow(channel, sender_id):
    return identities.judge(channel, sender_id, verdict=SocialIdentity.Verdict.ALLOWED, now=database_now(), label="Alice")


def an_event(text="hello", *, channel="hook", event_id="e1", sender_id="42", target_id=None, **more):
    return IncomingEvent(
        platform=channel, event_id=event_id, sender_id=sender_id, sender_name=more.pop("sender_name", "Alice"),
        target_id=target_id or sender_id, text=text, received_at=database_now(), **more,
    )  # fmt: skip


def refused(channel="hook"):
    """What was refused, by reason."""
    return dict(SocialChannel.objects.get(pk=channel).refusals.values_list("reason", "count"))


def post(body, *, to="hook", secret=SECRET, at=None, headers=None, client=None):
    """A signed call. ``headers`` replace those that are made; a body that is no bytes becomes JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    made = signed(secret, raw, at=int(time.time()) if at is None else at)
    given = {name: value for name, value in (made | (headers or {})).items() if value is not None}
    client = client or Client(raise_request_exception=False)
    return client.post(f"/channels/social/{to}", raw, content_type="application/json", headers=given)
