"""Which driver serves which channel."""

from __future__ import annotations

from sessions_app.models import SocialChannel
from sessions_app.social.drivers.base import Driver
from sessions_app.social.drivers.telegram import Telegram
from sessions_app.social.drivers.webhook import Webhook

DRIVERS: dict[str, Driver] = {SocialChannel.Driver.TELEGRAM: Telegram(), SocialChannel.Driver.WEBHOOK: Webhook()}


def driver_of(channel: SocialChannel) -> Driver:
    return DRIVERS[channel.driver]
