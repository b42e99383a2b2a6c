"""The Telegram Bot API, from its public description (core.telegram.org/bots/api): getUpdates, sendMessage, getFile.

An answer is ``{"ok": true, "result": …}`` or ``{"ok": false, "error_code": 429, "description": …,
"parameters": {"retry_after": seconds}}``. The token stands in the path, so no error text may carry a URL.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, BinaryIO
from urllib.parse import quote

from sessions_app.models import SocialChannel
from sessions_app.social.channels import secret_of
from sessions_app.social.drivers.base import (
    TIMEOUTS,
    Driver,
    Part,
    Rejected,
    Throttled,
    Unsure,
    as_send_error,
    refuse_failure,
)
from sessions_app.social.events import TEXT_LIMIT, Attachment, IncomingEvent
from sessions_app.text import storable
from suzent_site import outbound
from suzent_site.addresses import AddressRefused, Reach
from suzent_site.outbound import Timeouts, Unreachable

OFFICIAL = "https://api.telegram.org"
POLL_FOR = 20  # seconds that Telegram keeps getUpdates open when there is nothing
UPDATES_LIMIT = 16 * 1024 * 1024  # bytes of one answer to getUpdates
FILES = ("document", "audio", "video", "voice", "video_note", "animation")  # besides photo, which is a list of sizes


class Telegram(Driver):
    limit = 4096

    def send(self, channel: SocialChannel, route: Mapping[str, Any], part: Part) -> None:
        try:
            _call(channel, "sendMessage", {**_chat(route), "text": part.text})
        except (Unreachable, AddressRefused) as error:
            raise as_send_error(error) from None

    def typing(self, channel: SocialChannel, route: Mapping[str, Any]) -> None:
        try:
            _call(channel, "sendChatAction", {**_chat(route), "action": "typing"})
        except (Unreachable, AddressRefused) as error:
            raise as_send_error(error) from None

    def fetch(self, channel: SocialChannel, attachment: Attachment, *, to: BinaryIO, limit: int) -> None:
        found = _call(channel, "getFile", {"file_id": attachment.source["file_id"]})
        if not isinstance(found, dict):
            raise Rejected("getFile: the answer cannot be read")
        path = quote(str(found.get("file_path", "")))
        url = f"{_base(channel)}/file/bot{_token(channel)}/{path}"
        refuse_failure(outbound.download(url, reach=Reach.OPERATOR, to=to, limit=limit, timeouts=Timeouts(5, 15, 120)))


def updates(channel: SocialChannel, *, offset: int, wait: int) -> list[dict[str, Any]]:
    """The updates from ``offset`` on, the oldest first, after at most ``wait`` seconds; those before it are forgotten there.

    Raises Unreachable, AddressRefused, Throttled, Rejected, Unsure, CannotUnseal.
    """
    asked = {"offset": offset, "timeout": wait, "allowed_updates": ["message"]}
    found = _call(channel, "getUpdates", asked, timeouts=Timeouts(5, wait + 10, wait + 15))
    if not isinstance(found, list):
        raise Unsure("getUpdates: the answer cannot be read")
    return [item for item in found if isinstance(item, dict) and isinstance(item.get("update_id"), int)]


def own_id(channel: SocialChannel) -> str:
    """The bot's own user id, which its token begins with."""
    return _token(channel).partition(":")[0]


def event_of(channel: SocialChannel, update: Mapping[str, Any], *, now: datetime) -> IncomingEvent | None:
    """What somebody wrote; None for anything else that Telegram tells of."""
    message = update.get("message")
    if not isinstance(message, dict) or not isinstance(message.get("chat"), dict) or not isinstance(message.get("from"), dict):
        return None
    sender, chat = message["from"], message["chat"]
    topic = message.get("message_thread_id") if message.get("is_topic_message") else None
    if not all(isinstance(number, int) for number in (sender.get("id"), chat.get("id"), topic or 0)):
        return None
    route = {"chat_id": chat.get("id")} | ({"message_thread_id": topic} if topic else {})
    return IncomingEvent(
        platform=channel.name,
        event_id=f"{own_id(channel)}:{update['update_id']}",
        sender_id=str(sender.get("id")),
        sender_name=_name(sender),
        target_id=f"{chat.get('id')}" + (f":{topic}" if topic else ""),
        text=storable(str(message.get("text") or message.get("caption") or ""))[:TEXT_LIMIT],
        received_at=_moment(message.get("date"), now),
        reply_route=route,
        attachments=tuple(_attachments(message)),
        is_bot=sender.get("is_bot") is True,
    )


def _call(channel: SocialChannel, method: str, arguments: dict[str, Any], *, timeouts: Timeouts = TIMEOUTS) -> Any:
    url = f"{_base(channel)}/bot{_token(channel)}/{method}"
    limit = UPDATES_LIMIT if method == "getUpdates" else outbound.BODY_LIMIT
    answer = outbound.call("POST", url, reach=Reach.OPERATOR, json=arguments, timeouts=timeouts, limit=limit)
    try:
        said = answer.json()
    except ValueError:
        said = None
    if not isinstance(said, dict):
        refuse_failure(answer)
        raise Unsure(f"{method}: the answer cannot be read")
    if said.get("ok") is not True:
        _refuse(said, answer)
    return said.get("result")


def _refuse(said: dict[str, Any], answer: outbound.Answer) -> None:
    parameters = said.get("parameters")
    wait = parameters.get("retry_after") if isinstance(parameters, dict) else None
    if isinstance(wait, int | float) and wait >= 0:
        raise Throttled(min(float(wait), 86_400.0))
    why = storable(str(said.get("description", "")))[:200]
    refuse_failure(answer, why)
    raise Rejected(f"ok is not true: {why}")


def _base(channel: SocialChannel) -> str:
    return (channel.url or OFFICIAL).rstrip("/")


def _token(channel: SocialChannel) -> str:
    token = secret_of(channel)
    if not token:
        raise Rejected("the channel has no token")
    return quote(token, safe=":-_")


def _chat(route: Mapping[str, Any]) -> dict[str, Any]:
    given = route["route"]
    return {name: given[name] for name in ("chat_id", "message_thread_id") if given.get(name) is not None}


def _name(sender: Mapping[str, Any]) -> str:
    names = (sender.get("first_name"), sender.get("last_name"))
    return storable(" ".join(str(name) for name in names if name))[:200]


def _moment(seconds: Any, now: datetime) -> datetime:
    if not isinstance(seconds, int) or not 0 < seconds < 2**33:
        return now
    return datetime.fromtimestamp(seconds, tz=UTC)


def _attachments(message: Mapping[str, Any]) -> list[Attachment]:
    photos = message.get("photo")
    largest = [photos[-1]] if isinstance(photos, list) and photos else []
    found = [*largest, *(message[kind] for kind in FILES if kind in message)]
    return [_attachment(item) for item in found if isinstance(item, dict) and isinstance(item.get("file_id"), str)]


def _attachment(item: Mapping[str, Any]) -> Attachment:
    size = item.get("file_size")
    return Attachment(
        name=storable(str(item.get("file_name", "")))[:200], media_type=storable(str(item.get("mime_type", "")))[:100],
        size=size if isinstance(size, int) else None, source={"file_id": item["file_id"]},
    )  # fmt: skip
