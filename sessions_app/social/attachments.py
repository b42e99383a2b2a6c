"""Files that came with an event: at most 8, 50 MiB together, below the data directory under names that we make.

They stay there until an operator deletes them. What a sender calls a file is a label and never a path.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog
from django.conf import settings

from sessions_app.models import SocialChannel
from sessions_app.social.drivers.base import Driver, Rejected, Throttled, Unsure
from sessions_app.social.events import Attachment
from suzent_site.addresses import AddressRefused
from suzent_site.errors import SuzentError
from suzent_site.outbound import Unreachable

AT_MOST = 8
TOGETHER = 50 * 1024 * 1024  # bytes
DIRECTORY = "attachments"

log = structlog.get_logger(__name__)


def keep(driver: Driver, channel: SocialChannel, attachments: Sequence[Attachment]) -> list[dict[str, Any]]:
    """Fetch them, and say of each ``name``, ``media_type``, and ``file`` and ``size`` or the ``error``, in their order.

    ``file`` is relative to the data directory. One that is too many, too large or cannot be had stops nothing.
    """
    room, kept = TOGETHER, []
    for number, attachment in enumerate(attachments):
        about: dict[str, Any] = {"name": attachment.name, "media_type": attachment.media_type}
        if number >= AT_MOST:
            about["error"] = f"left out: only {AT_MOST} files of a message are kept"
        elif (attachment.size or 0) > room:
            about["error"] = f"left out: the files of a message may have {TOGETHER // 2**20} MiB together"
        else:
            about |= _kept(driver, channel, attachment, room=room)
            room -= about.get("size", 0)
        kept.append(about)
    return kept[: AT_MOST * 2]


def discard(kept: Sequence[dict[str, Any]]) -> None:
    """Delete the files of an event that had no turn after all."""
    for about in kept:
        if "file" in about:
            (Path(settings.SUZENT_DATA_DIR) / about["file"]).unlink(missing_ok=True)


def _kept(driver: Driver, channel: SocialChannel, attachment: Attachment, *, room: int) -> dict[str, Any]:
    name = secrets.token_hex(16)
    relative = Path(DIRECTORY) / name[:2] / name
    file = Path(settings.SUZENT_DATA_DIR) / relative
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    file.touch(mode=0o600)
    try:
        with file.open("wb") as to:
            driver.fetch(channel, attachment, to=to, limit=room)
        return {"file": str(relative), "size": file.stat().st_size}
    except (Unreachable, AddressRefused, Rejected, Throttled, Unsure, OSError) as error:
        with suppress(OSError):
            file.unlink()
        log.warning("attachment_left_out", channel=channel.pk, error=type(error).__name__)
        return {"error": f"left out: {error.detail if isinstance(error, SuzentError) else 'it could not be stored'}"}
