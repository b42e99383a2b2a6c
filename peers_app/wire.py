"""The shapes of the peer protocol, their limits, and how they are read. Pure: no database, no network.

The source of every rule here is wire.md: 2 for pairing, 3 for the channel.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from django.conf import settings

from inbox_app.content import check_content, check_message_id
from peers_app.base_url import base_url_of, is_never_called
from peers_app.models import NAME_LENGTH
from sessions_app.parsers import read_object
from sessions_app.text import refuse_unstorable
from suzent_site.errors import Conflict, Invalid, NotFound, Refused, SuzentError

HOPS_HEADER = "X-Suzent-Hops"
SESSION_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
DIGITS = re.compile(r"[0-9a-f]{64}", re.ASCII)
IDENTITY = re.compile(r"[0-9a-f]{32}", re.ASCII)
TOKEN_LIMIT = 512  # characters of a token that another device made
ATTACHMENTS_AT_MOST = 8
NAMELESS = "unknown"


class Unauthorized(SuzentError):
    """A valid token is needed."""

    code = "unauthorized"
    status = 401


class OutOfScope(Refused):
    """This token does not reach that far."""

    code = "out_of_scope"


class MalformedMail(SuzentError):
    """Invalid inbox payload"""

    code = "invalid"
    status = 400


class NotOurJSON(SuzentError):
    """Invalid JSON body"""

    code = "invalid"
    status = 400


class NoContent(SuzentError):
    """content is required"""

    code = "invalid"
    status = 400


class ForeignSession(Refused):
    """chat_id must belong to the authenticated peer namespace"""

    code = "foreign_session"


class NotActive(Conflict):
    """Peer agent is not active"""

    code = "not_active"


class UnknownRequest(NotFound):
    """Unknown or expired request"""


class UnknownGrant(NotFound):
    """Unknown grant"""


class TooManyRequests(SuzentError):
    """Too many requests for a grant wait here. Try again later."""

    code = "too_many_requests"
    status = 429


class TooManyHops(SuzentError):
    """hop_limit"""

    code = "hop_limit"
    status = 422


@dataclass(frozen=True)
class Mail:
    """The body of ``POST /channels/suzent/inbox``."""

    message_id: str
    content: str


@dataclass(frozen=True)
class Demand:
    """The body of ``POST proof``: two numbers in hexadecimal."""

    handle: str
    nonce: str


@dataclass(frozen=True)
class Asked:
    """The body of ``POST /nodes/grant-request``: what a stranger says of itself."""

    name: str = NAMELESS
    address: str = ""
    identity: str = ""


@dataclass(frozen=True)
class Offer:
    """The body of ``POST /nodes/peer-offer``."""

    base_url: str
    token: str = field(repr=False)
    name: str = ""


def mail_in(body: bytes) -> Mail:
    """Raises MalformedMail for anything but the two fields, whatever is wrong with it."""
    try:
        fields = read_object(body)
        if set(fields) != {"message_id", "content"} or not all(isinstance(value, str) for value in fields.values()):
            raise MalformedMail
        mail = Mail(fields["message_id"].strip(), fields["content"].strip())
        if not mail.message_id:
            raise MalformedMail
        check_message_id(mail.message_id, ours=True)  # it becomes part of an id of ours: theirs may look like one
        check_content(mail.content)
    except Invalid as error:
        raise MalformedMail from error
    return mail


def request_in(body: bytes) -> Asked:
    """An empty or unreadable body counts as ``{}``. Raises Invalid for an address or identity that is none."""
    try:
        fields = read_object(body)
    except Invalid:
        return Asked()
    return Asked(
        name=name_in(fields.get("controller_name")) or NAMELESS,
        address=_address_in(fields.get("controller_addr")),
        identity=identity_in(fields.get("controller_identity")),
    )


def demand_in(body: bytes) -> Demand:
    """Raises Invalid, naming the field that is missing or wrong."""
    fields = read_object(body)
    for name in ("handle", "nonce"):
        if not isinstance(fields.get(name), str) or not DIGITS.fullmatch(fields[name]):
            raise Invalid(name, "must be 64 hexadecimal digits")
    return Demand(fields["handle"], fields["nonce"])


def offer_in(body: bytes) -> Offer:
    """Raises Invalid, naming the field that is missing or wrong."""
    fields = read_object(body)
    address, token = fields.get("base_url"), fields.get("token")
    for name, value in (("base_url", address), ("token", token)):
        if not isinstance(value, str) or not value.strip():
            raise Invalid(name, "is required")
    return Offer(base_url_of(str(address), field="base_url"), token_in(str(token)), name_in(fields.get("name")))


def token_in(text: str) -> str:
    """A token that another device made, as it may go into a header. Raises Invalid."""
    token = text.strip(" ")
    if len(token) > TOKEN_LIMIT or not re.fullmatch(r"[\x21-\x7e]+", token, re.ASCII):
        raise Invalid("token", f"must be 1 to {TOKEN_LIMIT} printable ASCII characters")
    return token


def name_in(value: Any) -> str:
    """What a stranger calls itself, cut to what we keep; it is shown with care."""
    return value.strip()[:NAME_LENGTH] if isinstance(value, str) else ""


def identity_in(value: Any) -> str:
    """The identity that is claimed; empty for one that is none, which proves as little."""
    return value if isinstance(value, str) and IDENTITY.fullmatch(value) else ""


def hops_in(header: str | None) -> int:
    """How long the chain is that the message belongs to. Raises TooManyHops; what cannot be read counts as the maximum."""
    most = int(settings.SUZENT_MAX_HOPS)
    if header is None:
        return 0
    if not re.fullmatch(r"[0-9]{1,9}", header.strip(" "), re.ASCII):
        return most
    if int(header) > most:
        raise TooManyHops
    return int(header)


def session_named(chat_id: Any, *, default: str) -> str:
    """The session of a device that ``chat_id`` means. Raises ForeignSession for all that is not plainly one of its own."""
    if chat_id is None or chat_id == "":
        return default
    if not isinstance(chat_id, str):
        raise ForeignSession
    name = chat_id.removeprefix(f"{default}:")
    if chat_id == default:
        return default
    if not SESSION_NAME.fullmatch(name):
        raise ForeignSession
    return f"{default}:{name}"


def inbound_in(body: bytes) -> dict[str, Any]:
    """The fields of ``inbound``; unknown ones are ignored. Raises NotOurJSON."""
    try:
        return read_object(body)
    except Invalid as error:
        raise NotOurJSON from error


def content_in(fields: dict[str, Any]) -> str:
    """The content of ``inbound``. Raises NoContent, Invalid."""
    content = fields.get("content")
    if not isinstance(content, str) or not content.strip():
        raise NoContent
    check_content(content.strip(), field="content")
    return content.strip()


def _address_in(value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        return ""
    refuse_unstorable(value, field="controller_addr")
    address = base_url_of(value, field="controller_addr")
    return "" if is_never_called(address) else address  # many a device tells its own loopback address
