"""What a driver does for its kind of platform, and how it says that a text did not go out.

Every call goes through suzent_site.outbound, outside any transaction.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar

from sessions_app.models import SocialChannel
from sessions_app.social.events import Attachment
from suzent_site.addresses import AddressRefused
from suzent_site.errors import SuzentError
from suzent_site.outbound import Answer, Timeouts, Unreachable

TIMEOUTS = Timeouts(connect=5, read=10, total=12)  # all of it well within outbox.CLAIM_LASTS


class NotSent(SuzentError):
    """It certainly did not arrive."""

    code = "not_sent"
    status = 502


class Throttled(SuzentError):
    """The platform asks to wait."""

    code = "throttled"
    status = 429

    def __init__(self, retry_after: float) -> None:
        """``retry_after``: seconds."""
        self.retry_after = retry_after
        super().__init__(f"the platform asks to wait {retry_after:g} s", retry_after=retry_after)


class Rejected(SuzentError):
    """The platform says no."""

    code = "rejected"
    status = 502


class Unsure(SuzentError):
    """It may have arrived."""

    code = "unsure"
    status = 502


@dataclass(frozen=True)
class Part:
    """One message to be sent. ``number`` from 0; ``reply_id`` and number name it among all, for platforms that compare."""

    reply_id: int
    number: int
    text: str
    is_repeat: bool = False


class Driver(ABC):
    """One instance serves all channels of its kind, in many threads at once."""

    limit: ClassVar[int]  # UTF-16 code units in one message, as platforms count

    @abstractmethod
    def send(self, channel: SocialChannel, route: Mapping[str, Any], part: Part) -> None:
        """``route`` as ``outbox.route_of`` made it. Raises NotSent, Throttled, Rejected, Unsure, CannotUnseal."""

    @abstractmethod
    def typing(self, channel: SocialChannel, route: Mapping[str, Any]) -> None:
        """Show for a few seconds that an answer is on its way. Raises as ``send`` does."""

    @abstractmethod
    def fetch(self, channel: SocialChannel, attachment: Attachment, *, to: BinaryIO, limit: int) -> None:
        """Write the file's content, at most ``limit`` bytes. Raises NotSent, Rejected, Unreachable and its TooLarge."""


def as_send_error(error: Unreachable | AddressRefused) -> SuzentError:
    """What it means for a text that was to be sent."""
    return Unsure(error.detail) if error.maybe_sent else NotSent(error.detail)


def refuse_failure(answer: Answer, why: str = "") -> None:
    """Raises unless the answer says that it was taken: 429 Throttled, another 4xx or 3xx Rejected, 5xx Unsure."""
    if 200 <= answer.status < 300:
        return
    said = f"HTTP {answer.status}" + (f": {why}" if why else "")
    if answer.status == Throttled.status:
        raise Throttled(_seconds(answer.headers.get("Retry-After", "")))
    if answer.status >= 500:
        raise Unsure(said)
    raise Rejected(said)


def _seconds(text: str) -> float:
    return float(text) if text.isascii() and text.isdigit() and len(text) < 8 else 30.0
