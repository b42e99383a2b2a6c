"""Any platform with a bridge that signs: it posts events to us, and takes replies at the channel's URL, signed alike.

A reply is ``{"reply_id", "part", "repeated", "target_id", "sender_id", "reply_route", "text"}``; any 2xx confirms it.
Who compares ``reply_id`` and ``part`` with what came before drops the repeat that a time-out makes.
"""

from __future__ import annotations

import base64
import binascii
import json
import time
from collections.abc import Mapping
from typing import Any, BinaryIO

from sessions_app.models import SocialChannel
from sessions_app.social.channels import secret_of
from sessions_app.social.drivers.base import TIMEOUTS, Driver, Part, Rejected, as_send_error, refuse_failure
from sessions_app.social.events import Attachment
from sessions_app.social.signature import signed
from suzent_site import outbound
from suzent_site.addresses import AddressRefused, Reach
from suzent_site.outbound import Timeouts, TooLarge, Unreachable


class Webhook(Driver):
    limit = 20_000

    def send(self, channel: SocialChannel, route: Mapping[str, Any], part: Part) -> None:
        secret = secret_of(channel)
        if not secret or not channel.url:
            raise Rejected("the channel has no secret or no URL")
        body = json.dumps(_body(route, part)).encode("ascii")
        headers = {"Content-Type": "application/json", **signed(secret, body, at=int(time.time()))}
        try:
            answer = outbound.call("POST", channel.url, reach=Reach.OPERATOR, body=body, headers=headers, timeouts=TIMEOUTS)
        except (Unreachable, AddressRefused) as error:
            raise as_send_error(error) from None
        refuse_failure(answer)

    def typing(self, channel: SocialChannel, route: Mapping[str, Any]) -> None:
        """There is no such signal in this protocol."""

    def fetch(self, channel: SocialChannel, attachment: Attachment, *, to: BinaryIO, limit: int) -> None:
        """Content that came along, or a URL: one from the wire leads to public addresses only."""
        if "url" in attachment.source:
            url = attachment.source["url"]
            refuse_failure(outbound.download(url, reach=Reach.PUBLIC, to=to, limit=limit, timeouts=Timeouts(5, 15, 120)))
            return
        content = _decoded(attachment.source.get("content", ""))
        if len(content) > limit:
            raise TooLarge(f"The attachment is larger than {limit} bytes.", maybe_sent=False)
        to.write(content)


def _body(route: Mapping[str, Any], part: Part) -> dict[str, Any]:
    return {
        "reply_id": f"reply-{part.reply_id}", "part": part.number, "repeated": part.is_repeat, "target_id": route["target_id"],
        "sender_id": route["sender_id"], "reply_route": route["route"], "text": part.text,
    }  # fmt: skip


def _decoded(data: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise Rejected("the attachment is no base64") from None
