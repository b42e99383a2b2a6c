"""What a webhook may bring: the fields of an IncomingEvent, each checked."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from rest_framework import serializers
from rest_framework.exceptions import ValidationError

from sessions_app.exceptions import first_complaint
from sessions_app.models import SocialChannel
from sessions_app.serializers import Flag, Options, StrictSerializer, Text, Whole
from sessions_app.social.attachments import AT_MOST
from sessions_app.social.events import ID_LIMIT, TEXT_LIMIT, Attachment, IncomingEvent
from suzent_site.errors import Invalid

ROUTE_LIMIT = 4_000  # characters of the reply route as JSON


class AttachmentIn(StrictSerializer):
    name = Text(required=False, default="", allow_blank=True, max_length=200)
    media_type = Text(required=False, default="", allow_blank=True, max_length=100)
    size = Whole(required=False, min_value=0)
    url = Text(required=False, max_length=2_000)
    content = Text(required=False, max_length=1_048_576, help_text="In base64.")

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if ("url" in attrs) == ("content" in attrs):
            raise ValidationError({"url": ["give url or content, and not both"]})
        return attrs


class EventIn(StrictSerializer):
    platform = Text(required=False, help_text="The channel's name; the URL says it already.")
    event_id = Text(max_length=ID_LIMIT)
    sender_id = Text(max_length=ID_LIMIT)
    sender_name = Text(required=False, default="", allow_blank=True, max_length=200)
    target_id = Text(required=False, max_length=ID_LIMIT, help_text="The chat, thread or room; left out, the sender's own.")
    text = Text(max_length=TEXT_LIMIT, allow_blank=True, required=False, default="")
    attachments = serializers.ListField(child=AttachmentIn(), required=False, max_length=AT_MOST)
    reply_route = Options(required=False)
    is_bot = Flag(required=False, default=False)
    received_at = Text(required=False, help_text="ISO 8601.")


def event_from(body: dict[str, Any], channel: SocialChannel, *, now: datetime) -> IncomingEvent:
    """Raises Invalid, naming the first field that is wrong."""
    serializer = EventIn(data=body)
    try:
        serializer.is_valid(raise_exception=True)
    except ValidationError as error:
        raise first_complaint(error.detail) from error
    given = serializer.validated_data
    if given.get("platform", channel.name) not in {channel.name, channel.driver}:
        raise Invalid("platform", "is not this channel's name")
    return IncomingEvent(
        platform=channel.name, event_id=given["event_id"], sender_id=given["sender_id"], sender_name=given["sender_name"],
        target_id=given.get("target_id", given["sender_id"]), text=given["text"], received_at=_moment(given.get("received_at"), now),
        reply_route=_route(given.get("reply_route", {})), is_bot=given["is_bot"],
        attachments=tuple(_attachment(item) for item in given.get("attachments", [])),
    )  # fmt: skip


def _moment(text: str | None, now: datetime) -> datetime:
    if text is None:
        return now
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise Invalid("received_at", "is not a moment in ISO 8601") from error
    if moment.tzinfo is None:
        raise Invalid("received_at", "has no time zone")
    return moment


def _route(route: dict[str, Any]) -> dict[str, Any]:
    if len(json.dumps(route)) > ROUTE_LIMIT:
        raise Invalid("reply_route", f"must be at most {ROUTE_LIMIT} characters as JSON")
    return route


def _attachment(given: dict[str, Any]) -> Attachment:
    source: dict[str, str] = {name: str(given[name]) for name in ("url", "content") if name in given}
    return Attachment(given["name"], given["media_type"], given.get("size"), source)
