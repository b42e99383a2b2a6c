"""Files that a device hands over with ``inbound``: pulled from it, under the rules of wire.md 3."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings

from peers_app import calls
from peers_app.base_url import host_of
from peers_app.models import DeviceGrant
from peers_app.wire import ATTACHMENTS_AT_MOST, token_in
from sessions_app.text import storable
from suzent_site import outbound
from suzent_site.addresses import AddressRefused, Reach, origin_of
from suzent_site.data_dir import open_data_dir
from suzent_site.errors import Invalid, SuzentError
from suzent_site.outbound import Timeouts, Unreachable

TOGETHER = 50 * 1024 * 1024  # bytes
KEPT_OF_A_DEVICE = 1024 * 1024 * 1024  # bytes
PULL = Timeouts(connect=5, read=15, total=60)
NAME_LIMIT = 120  # characters
_PATH = re.compile(r"/nodes/peer-files/[A-Za-z0-9_-]{1,128}", re.ASCII)
_SAFE = re.compile(r"[^A-Za-z0-9_. -]", re.ASCII)


class NotPulled(SuzentError):
    """An attachment could not be fetched."""

    code = "not_pulled"
    status = 502


class NoRoom(SuzentError):
    """The files of this device take up all the room that it has here."""

    code = "no_room"
    status = 413


@dataclass(frozen=True)
class Attachment:
    url: str
    token: str = field(repr=False)
    name: str
    size: int
    media_type: str


def attachments_in(value: Any, *, grant: DeviceGrant, came_from: str) -> tuple[Attachment, ...]:
    """Those of a call that came from this address. Raises Invalid, naming the field."""
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > ATTACHMENTS_AT_MOST:
        raise Invalid("attachments", f"must be a list of at most {ATTACHMENTS_AT_MOST}")
    found = tuple(_attachment(item) for item in value)
    if sum(item.size for item in found) > TOGETHER:
        raise Invalid("attachments", f"must be at most {TOGETHER} bytes together")
    for item in found:
        _check(item.url, grant=grant, came_from=came_from)
    return found


def _attachment(item: Any) -> Attachment:
    if not isinstance(item, dict) or not all(isinstance(item.get(name), str) for name in ("url", "token", "name")):
        raise Invalid("attachments", "must each have a url, a token and a name")
    size, media_type = item.get("size"), item.get("media_type")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise Invalid("attachments.size", "must be a whole number of bytes")
    return Attachment(item["url"], token_in(item["token"]), name_of(item["name"]), size, media_type[:100] if isinstance(media_type, str) else "")


def _check(url: str, *, grant: DeviceGrant, came_from: str) -> None:
    """The device may have us fetch from itself and from nowhere else."""
    try:
        host, parts = origin_of(url).host, urlsplit(url)
        own = {came_from, host_of(grant.callback_url) if grant.callback_url else came_from}
    except AddressRefused as refused:
        raise Invalid("attachments.url", refused.detail) from refused
    if not _PATH.fullmatch(parts.path) or "?" in url:
        raise Invalid("attachments.url", "must lead to /nodes/peer-files/<id> and have no query")
    if host not in own:
        raise Invalid("attachments.url", "must lead to the device itself")


def name_of(name: str) -> str:
    """The last part of its path, harmless as the name of a file."""
    last = re.split(r"[/\\]", name)[-1]
    return _SAFE.sub("_", storable(last)).strip(". ")[:NAME_LIMIT] or "file"


def pull(attachments: tuple[Attachment, ...], *, grant: DeviceGrant) -> list[dict[str, Any]]:
    """Fetch them into the data directory; what a runtime is told of each. Raises NotPulled, NoRoom.

    All or none: a file that cannot be had ends the call before the turn begins.
    """
    if not attachments:
        return []
    room = _room_of(grant)
    if sum(item.size for item in attachments) > room.free:
        raise NoRoom
    folder = open_data_dir(room.folder / secrets.token_hex(8))
    return [_pulled(item, folder / f"{number}-{item.name}") for number, item in enumerate(attachments)]


@dataclass(frozen=True)
class _Room:
    folder: Path
    free: int


def _room_of(grant: DeviceGrant) -> _Room:
    folder = open_data_dir(Path(settings.SUZENT_DATA_DIR) / "attachments" / grant.device_id)
    return _Room(folder, KEPT_OF_A_DEVICE - sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()))


def _pulled(item: Attachment, file: Path) -> dict[str, Any]:
    try:
        file.touch(mode=0o600)
        with file.open("wb") as to:
            answer = outbound.download(
                item.url, reach=Reach.OPERATOR, to=to, limit=item.size, headers=calls.bearer(item.token), timeouts=PULL
            )
    except (AddressRefused, Unreachable) as error:
        file.unlink(missing_ok=True)
        raise NotPulled(f"{item.name}: {error.detail}") from error
    if answer.status != 200 or file.stat().st_size != item.size:
        size = file.stat().st_size
        file.unlink()
        raise NotPulled(f"{item.name}: it answered {answer.status} with {size} bytes instead of {item.size}.")
    return {"name": item.name, "media_type": item.media_type, "size": item.size, "path": str(file)}
