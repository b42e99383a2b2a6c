"""Chains of messages that wake each other: how long they are, and who woke whom."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings

from inbox_app.errors import HopLimit
from inbox_app.models import Message
from sessions_app.models import Turn


@dataclass(frozen=True)
class Chain:
    """How this message came about: which one its sender was handling, and how long the chain is by now."""

    hops: int = 0
    root_id: str = ""
    caused_by: str = ""


def chain_of(project_id: str, *, sender_id: str | None, in_reply_to: str, limited: bool) -> Chain:
    """Behind the longest of: what the sender is handling, how its turn came in, what it replies to. Raises HopLimit, with the chain, if ``limited``."""
    running = Turn.objects.running().filter(session=sender_id).only("message_ids", "hops").first() if sender_id else None
    handled = set(running.message_ids) if running else set()
    ids = {*handled, in_reply_to} - {""}
    causes = list(Message.objects.filter(project=project_id, message_id__in=ids)) if ids else []
    cause = max(causes, key=lambda message: message.hops, default=None)
    hops = max(running.hops if running else 0, cause.hops + 1 if cause else 0)
    if hops > settings.SUZENT_MAX_HOPS and limited:
        raise HopLimit(chain=_links(cause), limit=settings.SUZENT_MAX_HOPS)
    if cause is None:
        return Chain(hops)
    caused_by = cause.message_id if cause.message_id in handled else ""
    return Chain(hops, cause.root_id, caused_by)


def _links(message: Message | None) -> list[dict[str, str]]:
    """Who woke whom, oldest first."""
    chain: list[dict[str, str]] = []
    link = message
    while link is not None and len(chain) <= settings.SUZENT_MAX_HOPS:
        chain.insert(0, {"message_id": link.message_id, "sender": link.sender_id or link.sender_label, "agent_id": link.target})
        before = link.caused_by or link.in_reply_to
        link = Message.objects.filter(project=link.project_id, message_id=before).first() if before else None
    return chain
