"""The transport to sessions of this installation: a delivery is a turn of the target, which dispatcher.py runs."""

from __future__ import annotations

from inbox_app.models import Message
from inbox_app.transports import Transport


class Local(Transport):
    attempts = 5

    def is_gone(self, message: Message) -> bool:
        session = message.session
        return session is None or session.archived_at is not None or session.project.archived_at is not None
